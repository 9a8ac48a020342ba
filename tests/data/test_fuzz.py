"""Readers and loaders on mutated files: a success, or one printable line of a ValueError, and nothing else.

The tests are bounded and seeded; `make fuzz` is coverage-guided. tests/corpus/ holds inputs of fixed bugs.
"""

import random
from pathlib import Path

import pytest
from fuzz import commands, mutate, seeds
from fuzz.targets import TARGETS, examples, outcome
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from riskmin import load_model
from riskmin.data import check, load, load_conll

CORPUS = sorted((Path(__file__).parents[1] / "corpus").glob("*"))
EACH = settings(
    max_examples=10, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
"""So many cases a reader in every run of the tests."""
numbers = st.integers(0, 2**32)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_inputs_of_fixed_bugs(path):
    TARGETS[path.name.partition("-")[0]](path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_valid_files_are_read(name):
    for blob in examples(name):
        assert TARGETS[name](blob) is None or name == "model_meta"  # its arrays may belong to another model


@pytest.mark.parametrize("name", TARGETS)
@EACH
@given(seed=numbers)
def test_mutated_bytes(name, seed):
    rng = random.Random(seed)
    TARGETS[name](mutate.mutated(rng, rng.choice(examples(name))))


@EACH
@given(seed=numbers)
def test_mutated_arrays_in_archives(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / "d.npz"
    path.write_bytes(mutate.odd_npz(rng, rng.choice(seeds.npz_arrays())))
    outcome(lambda: load(path, require_labels=False, max_memory=16))


@EACH
@given(seed=numbers)
def test_mutated_stores(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / f"{seed}.rsk"
    path.mkdir(exist_ok=True)
    for name, blob in mutate.odd_store(rng, rng.choice(seeds.stores())).items():
        (path / name).write_bytes(blob)
    outcome(lambda: check(path))
    outcome(lambda: load(path, verify=False).X.sum())


@settings(EACH, max_examples=50)
@given(seed=numbers)
def test_mutated_models_predict_or_are_refused(seed, tmp_path):
    rng = random.Random(seed)
    path = tmp_path / "m.riskmin"
    arrays, meta = rng.choice(list(seeds.models().values()))
    path.write_bytes(mutate.odd_model(rng, arrays, meta))
    loaded = []
    outcome(lambda: loaded.append(load_model(path)))
    for model in loaded:
        rows = [[("He", "P"), ("sits", "V")]] if model.task == "tagging" else seeds.X
        outcome(lambda model=model, rows=rows: model.predict(rows))


@EACH
@given(seed=numbers)
def test_damaged_compressed_files(seed, tmp_path):
    rng = random.Random(seed)
    blob, suffix = seeds.compressed(rng, rng.choice([seeds.CSV, seeds.SVMLIGHT, seeds.CONLL]), damage=True)
    path = tmp_path / f"d.csv{suffix}"
    path.write_bytes(blob)
    outcome(lambda: load(path))
    outcome(lambda: load_conll(path))


@pytest.mark.exhaustive
def test_fuzzed_commands_end_as_documented(tmp_path):
    for seed in range(60):
        args, code, text = commands.case(seed, tmp_path)
        assert commands.failure_kind(code, text) is None, (args, code, text)
