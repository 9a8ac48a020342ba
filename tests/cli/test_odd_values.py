"""Odd values of options, config files and logs end in one sentence, never in a traceback."""

import numpy as np
import pytest

from riskmin.core.persist import save_arrays
from riskmin.estimators import load_model


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "d.csv"
    path.write_text("a,b,y\n1,2,0\n2,1,1\n3,0,0\n4,1,1\n")
    return path


def fails(run, *args):
    """Whether a command ends with one sentence and exit code 2."""
    code, _, err = run(*args)
    return code == 2 and err.startswith("riskmin: ") and err.count("\n") == 1


VALUES = ("true", "[true]", "{}", "{a = 1}", "[{a = 1}]", "[[1], [2]]")
OPTIONS = ("checkpoint", "lam", "target", "columns", "loss", "max-memory", "order", "jobs", "output", "data")


@pytest.mark.parametrize("value", VALUES)
def test_values_of_another_kind_in_a_config_file(value, data, tmp_path, run):
    config = tmp_path / "c.toml"
    for option in OPTIONS:
        for head in ("", "[fit]\n"):
            config.write_text(f"{head}{option} = {value}\n")
            assert fails(run, "fit", data, "-o", tmp_path / "m", "--config", config), (head, option)


@pytest.mark.parametrize(
    "text",
    [
        "fit = 3",
        "fit = 'x'",
        "[[fit]]",
        "[fitt]",
        "positive = 3",
        "config = 'x'",
        "[fit.loss]",
        "loss = " + "[" * 9000,
    ],
    ids=lambda text: text[:12],
)
def test_sections_of_another_kind_in_a_config_file(text, data, tmp_path, run):
    (tmp_path / "c.toml").write_text(text)
    assert fails(run, "fit", data, "-o", tmp_path / "m", "--config", tmp_path / "c.toml")


def test_sections_of_other_commands_and_flags_are_read(data, tmp_path, run):
    (tmp_path / "c.toml").write_text("tol = 0.01\n[cv]\nfolds = 3\n[fit]\nstandardize = true\n")
    assert run("fit", data, "-o", tmp_path / "m", "--config", tmp_path / "c.toml")[0] == 0
    assert load_model(tmp_path / "m").get_params()["standardize"] is True


def test_empty_lists_of_columns(data, tmp_path, run):
    for text in ("", ",", " "):
        assert fails(run, "fit", data, "-o", tmp_path / "m", "--columns", text)


def test_values_that_are_nested_too_deeply(data, tmp_path, run):
    deep = tmp_path / "deep"
    for text in ("[" * 200_000, "a = " + "[" * 9000, '{"a":' * 100_000):
        deep.write_text(text)
        assert run("audit", "log", deep)[0] == 1
        for args in (
            ("fit", "-o", tmp_path / "m", "--owners", deep),
            ("fit", data, "-o", tmp_path / "m", "--config", deep),
            ("serve", data, "--name", "x", "--ca", deep, "--cert", deep, "--key", deep, "--policy", deep),
            ("show", deep),
        ):
            assert fails(run, *args), args
    nested: list = []
    for _ in range(700):
        nested = [nested]
    save_arrays(deep, {"x": np.zeros(1)}, {"kind": "model", "sha256": nested})
    assert fails(run, "show", deep)


def test_more_threads_than_a_machine_has(data, tmp_path, run):
    assert run("fit", data, "-o", tmp_path / "m", "--jobs", 10**14)[0] == 0


def test_export_writes_onnx_to_files_of_onnx_only(data, tmp_path, run):
    run("fit", data, "-o", tmp_path / "m")
    assert fails(run, "export", tmp_path / "m", tmp_path / "m.pmml")
    assert not (tmp_path / "m.pmml").exists()


@pytest.mark.slow
def test_many_columns_of_numbers_and_of_text(tmp_path, run):
    names = [f"column_{k}" for k in range(12_000)]
    for cells in ("123", "uvw"):
        rows = [",".join([cell] * len(names) + [str(k % 2)]) for k, cell in enumerate(cells)]
        (tmp_path / "wide.csv").write_text("\n".join([",".join([*names, "y"]), *rows, ""]))
        assert run("fit", tmp_path / "wide.csv", "-o", tmp_path / "m", "--min-frequency", 1)[0] == 0
        assert len(run("predict", tmp_path / "m", tmp_path / "wide.csv")[1].split()) == len(cells)
