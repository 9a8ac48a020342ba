"""The documentation agrees with the code: tables, links, versions, commands and example scripts."""

import ast
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest
from docs import build, ratios, rooms, tables

import riskmin
from helpers import customers, problem, risk_of
from riskmin import LOSSES, check_loss

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
EXAMPLES = sorted(ROOT.glob("examples/*.py"))


def name_of(path):
    return path.relative_to(ROOT).as_posix()


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def table(text, first):
    """The rows of the Markdown table whose first column has this title."""
    lines = text[text.index(f"| {first} |") :].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


# ---------------------------------------------------------------- tables
def documented_losses():
    """For each class in the table of losses: its default instance, names, smoothness and solvers."""
    rows = table(read("docs/reference.md"), "loss")
    documented = {}
    for call, names, _, smooth, picks in rows:
        if match := re.fullmatch(r"`(\w+)(\(.*\))`", call):
            loss = eval(call.strip("`"), dict(LOSSES.own_classes))
            documented[match[1]] = loss, re.findall(r"`(\w+)`", names), smooth, re.findall(r"`(\w+)`", picks)
    return documented


def test_reference_lists_every_loss():
    documented = documented_losses()
    assert sorted(documented) == sorted({type(loss).__name__ for loss in LOSSES.values()})
    assert f"{len(documented)} losses in all" in read("docs/reference.md")
    names = [name for _, names, _, _ in documented.values() for name in names]
    assert sorted(names) == sorted(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_reference_describes_each_loss_correctly(name):
    loss = LOSSES[name]
    default, names, smooth, picks = documented_losses()[type(loss).__name__]
    assert LOSSES[names[0]] == default
    assert smooth == {True: "yes", False: "no"}[loss.smooth] or smooth.startswith("if")
    X, y, _ = problem(loss)
    risk = risk_of(loss, X, y)
    J = riskmin.Objective(risk, riskmin.L2(), 1)
    assert type(riskmin.Auto().choose(J)[0]).__name__ in picks


def test_reference_lists_every_solver():
    listed = [row[0].strip("`") for row in table(read("docs/reference.md"), "solver")]
    offered = [n for n in dir(riskmin) if hasattr(getattr(riskmin, n), "iterates")]
    assert sorted(listed) == sorted(offered)


def test_tables_get_a_row_for_what_they_lack():
    """A new loss needs no row written by hand; rows that are there are not changed."""
    assert tables.reference_page(lambda loss: ()) == read("docs/reference.md")
    assert tables.regularizers_page() == read("docs/regularizers.md")
    text = "| name | x |\n| --- | --- |\n| `Hinge(margin=1)` | |\n| others | |\n\nMore."
    known = {"Hinge": riskmin.Hinge(), "Huber": riskmin.Huber(delta=2.0)}
    added = tables.with_rows(text, "name", known, lambda loss: f"| {tables.signature(loss)} | new |")
    assert added == text.replace("| others", "| `Huber(delta=2)` | new |\n| others")


def test_ratios_are_those_of_the_results():
    assert ratios.page() == read("docs/performance.md"), "run `make docs`"
    found = ratios.table(["0.0001", "1e-08"], l1=False)
    row = next(row for row in ratios.measured() if row[:3] == ["a9a", "logistic", "0.0001"])
    assert f"| logistic, a9a | {ratios.short(row[5])} / {ratios.short(row[7])} |  |" in found
    assert [ratios.short(text) for text in ("> 1.6e+02", "0.94", "")] == ["> 160", "0.94", "–"]


def test_architecture_lists_every_room_in_order():
    listed = [row[0].strip("`/") for row in table(read("docs/architecture.md"), "room")]
    contracts = tomllib.loads(read("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    assert [f"riskmin.{room}" for room in listed] == layers[::-1]


def test_the_map_shows_the_order_of_a_fit():
    """The map has the rooms of the architecture page, and a fit calls the numbered ones in order."""
    listed = [row[0].strip("`/") for row in table(read("docs/architecture.md"), "room")]
    assert [name for name, *_ in rooms.ROOMS] == listed
    visited, home = [], str(Path(riskmin.__file__).parent)

    def profile(frame, event, _):
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(home):
            visited.append(Path(name).relative_to(home).parts[0])

    X = np.random.default_rng(0).standard_normal((200, 5))
    model = riskmin.LinearClassifier("hinge").fit(X, X[:, 0] > 0)  # imports and compiles
    sys.setprofile(profile)
    try:
        model.fit(X, X[:, 0] > 0)
    finally:
        sys.setprofile(None)
    calls = iter(visited)
    assert all(name in calls for name in rooms.FIT)


# ---------------------------------------------------------------- links and pictures
def test_links_resolve():
    broken = []
    for page in PAGES:
        links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
        local = [link.partition("#")[0] for link in links if not re.match(r"https?:|#", link)]
        broken += [(name_of(page), link) for link in local if not (page.parent / link).exists()]
    assert broken == []


def test_pages_name_the_version_and_every_decision_and_the_readme_is_short():
    assert f"\n## {riskmin.__version__}\n" in read("CHANGELOG.md")
    index, lines = read("docs/adr/README.md"), read("README.md").splitlines()
    assert not [p.name for p in ROOT.glob("docs/adr/0*.md") if f"]({p.name})" not in index]
    assert len(lines) <= 110
    assert max(map(len, lines)) < 120


@pytest.mark.parametrize("name", ["rooms", "cuts", "convergence", "certificate", "roc_a9a", "prbep_c11"])
def test_pictures_are_valid_svg(name):
    text = read(f"docs/img/{name}.svg")
    assert ET.fromstring(text).tag.endswith("svg")
    assert "nan" not in text
    assert "var(--" not in text


# ---------------------------------------------------------------- code
def blocks(page, language):
    """The code blocks of a page."""
    matches = re.findall(rf"^( *)```{language}\n(.*?)^\1```", read(page), re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(text) for _, text in matches]


def test_the_loss_in_contributing_meets_the_contract():
    (source,) = blocks("CONTRIBUTING.md", "python")
    head = """
import math
from dataclasses import dataclass
from typing import Any
from riskmin import namespace
from riskmin.losses.base import Loss
from riskmin.losses.labels import check_finite
Array = Any
"""
    scope = {"__name__": "contributing"}
    exec(head + source, scope)
    check_loss(scope["LogCosh"]())


@pytest.mark.slow
def test_the_fit_of_the_gpu_tutorial_runs():
    pytest.importorskip("torch")
    (source,) = blocks("docs/tutorials/gpu.md", "python")
    scope = {}
    exec(source.replace("4_000_000", "4_000"), scope)
    assert scope["result"].status == "converged"


@pytest.mark.slow
def test_the_spark_tutorial_runs(spark, tmp_path, monkeypatch):
    pytest.importorskip("duckdb")
    pl = pytest.importorskip("polars")
    rng = np.random.default_rng(0)
    rows = {name: rng.uniform(0, 60, 400) for name in ("age", "price", "hour")}
    bought = np.where(rows["age"] + rng.normal(0, 9, 400) > 30, "yes", "no")
    (tmp_path / "clicks").mkdir()
    pl.DataFrame(rows | {"bought": bought}).write_parquet(tmp_path / "clicks" / "0.parquet")
    monkeypatch.chdir(tmp_path)
    scope = {}
    for source in blocks("docs/tutorials/spark.md", "python"):
        # relative paths of Spark are those of its start
        exec(
            source.replace('"clicks")', f'"{tmp_path}/clicks")').replace('"scored"', f'"{tmp_path}/scored"'),
            scope,
        )
    for model in (scope["model"].estimator_, scope["local"]):
        assert model.gap_ <= model.tol * model.objective_
    assert scope["model"].estimator_.objective_ == pytest.approx(scope["local"].objective_, rel=2e-3)
    assert {"prediction", "bought"} < set(pl.read_parquet(tmp_path / "scored" / "*.parquet").columns)
    assert riskmin.load_data(tmp_path / "all.rsk").X.shape == (400, 3)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The data files named by the commands in the documentation."""
    from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris

    from riskmin.data import save_svmlight

    folder = tmp_path_factory.mktemp("commands")
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    for name, rows in {"train": slice(400), "test": slice(400, 500), "new": slice(500, None)}.items():
        save_svmlight(folder / f"{name}.svm", X[rows], 2 * y[rows] - 1)
    table = load_breast_cancer(as_frame=True).frame.rename(columns={"target": "diagnosis"})
    table[:400].to_csv(folder / "train.csv", index=False)
    table[400:].to_csv(folder / "test.csv", index=False)
    X, y = load_diabetes(return_X_y=True)
    columns = [*(f"f{j}" for j in range(10)), "price"]
    pd.DataFrame(np.column_stack([X, y]), columns=columns).to_csv(folder / "houses.csv", index=False)
    grade, X = np.digitize(y, [90, 140, 200]), X / X.std(axis=0)
    for name, rows in {"clicks": slice(300), "later": slice(300, None)}.items():
        save_svmlight(folder / f"{name}.svm", X[rows], grade[rows], np.arange(len(y))[rows] // 10)
    rows, stages = pd.DataFrame(X, columns=columns[:-1]), np.array(["mild", "fair", "serious", "grave"])
    rows.assign(stage=stages[grade]).to_csv(folder / "patients.csv", index=False)
    wards = [f"ward {i // 20}" for i in range(len(y))]
    rows.assign(ward=wards, need=grade).to_csv(folder / "visits.csv", index=False)
    flowers = load_iris(as_frame=True)
    kinds = flowers.target_names[flowers.target]
    flowers.data.assign(kind=kinds).to_csv(folder / "flowers.csv", index=False)
    customers().to_csv(folder / "customers.csv", index=False)
    customers(seed=1).drop(columns="bought").to_csv(folder / "prospects.csv", index=False)
    sentences = [[word.split("/") for word in sentence.split()] for sentence in SENTENCES]
    for name, columns in {"chunks": 3, "news": 2}.items():
        blocks = ["".join(" ".join(word[:columns]) + "\n" for word in words) for words in sentences]
        (folder / f"{name}.conll").write_text("\n".join(blocks), encoding="utf-8")
    return folder


SENTENCES = (
    "He/PRP/B-NP reckons/VBZ/B-VP the/DT/B-NP current/JJ/I-NP deficit/NN/I-NP will/MD/B-VP narrow/VB/I-VP",
    "Rain/NN/B-NP fell/VBD/B-VP on/IN/B-PP Monday/NNP/B-NP",
    "The/DT/B-NP markets/NNS/I-NP reacted/VBD/B-VP to/TO/B-PP it/PRP/B-NP ././O",
)


def has_commands(page):
    if page == "docs/owners.md":
        return False  # its commands run in processes of their own, in tests/owners/test_processes.py
    return any(re.search(r"^riskmin ", block, re.MULTILINE) for block in blocks(page, "sh"))


@pytest.mark.parametrize("page", [page for page in map(name_of, PAGES) if has_commands(page)])
def test_commands_run(page, files, monkeypatch, capsys):
    from riskmin.cli import main

    monkeypatch.chdir(files)
    lines = [line for block in blocks(page, "sh") for line in re.split(r"\n|&&", block)]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.strip().startswith("riskmin ")]
    assert commands
    for command in commands:
        assert main(command) == 0, (command, capsys.readouterr())


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this system")
def test_make_bench_requires_its_data():
    settings = {"cwd": ROOT, "env": {"PATH": os.environ["PATH"]}}  # without those of an outer make
    done = subprocess.run(["make", "bench"], **settings, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "make bench DATA=folder" in line


@pytest.mark.skipif(os.environ.get("RISKMIN_SWEEPS") != "all", reason="`make docs` runs all examples")
@pytest.mark.parametrize("script", EXAMPLES, ids=name_of)
def test_examples_run(script):
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout


# ---------------------------------------------------------------- the site
GALLERY = sorted(ROOT.glob("examples/gallery/plot_*.py"))


def test_every_public_name_is_in_the_reference():
    names = [name for group in build.api_pages.grouped().values() for name in group]
    assert sorted(names) == sorted(riskmin.__all__)
    assert "mrr_score" in build.api_pages.module_names("riskmin.metrics")


def test_every_page_is_in_a_menu():
    """A page outside of all menus is found by its search only."""
    entries = [(Path(page).parent, entry) for page, menu in build.MENUS.items() for entry in menu]
    listed = {os.path.normpath(folder / entry) for folder, entry in entries}
    pages = {name_of(p).removeprefix("docs/").removesuffix(".md") for p in ROOT.glob("docs/**/*.md")}
    outside = {name.removesuffix(".md") for name in build.ELSEWHERE.values()}
    decisions = {name for name in pages if name.startswith("adr/0")}  # listed by their own index
    assert pages - decisions | outside == listed - {"gallery/index", "api/index"} | {"index"}


def test_links_of_the_repository_become_links_of_the_site():
    page = Path("docs/tutorials/gpu.md")
    text = "[a](../faq.md#x) [b](../../CHANGELOG.md) ![c](../img/cuts.svg) [d.py](../../examples/grid.py) [e](http://e)"
    expected = "[a](../faq.md#x) [b](../changelog.md) ![c](../img/cuts.svg) `d.py` [e](http://e)"
    assert build.with_site_links(text, page) == expected
    text = "[a](docs/faq.md) [b](benchmarks/RESULTS.md#hinge)"
    assert build.with_site_links(text, Path("CHANGELOG.md")) == "[a](faq.md) [b](benchmarks.md#hinge)"


def test_broken_links_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<h1 id="top">A</h1><a href="b.html#here">b</a>', encoding="utf-8")
    good = '<p id="here"><a href="a.html#top"></a><a href="#here"></a><a href="https://e"></a>'
    (tmp_path / "b.html").write_text(good, encoding="utf-8")
    assert build.broken_links(tmp_path) == []
    bad = '<a href="a.html#end"></a><a href="c.html"></a>'
    (tmp_path / "b.html").write_text(good + bad, encoding="utf-8")
    assert build.broken_links(tmp_path) == ["b.html: a.html#end", "b.html: c.html"]


def test_the_gallery_has_titles_and_enough_examples():
    assert len(GALLERY) >= 15
    for script in GALLERY:
        title, rule = ast.get_docstring(ast.parse(script.read_text(encoding="utf-8"))).splitlines()[:2]
        assert set(rule) == {"="}
        assert len(rule) >= len(title)


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", GALLERY, ids=name_of)
def test_gallery_examples_run(script):
    """In this process, where warnings are errors and imports are shared; each draws a figure."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    runpy.run_path(str(script))
    assert plt.get_fignums()
    plt.close("all")
