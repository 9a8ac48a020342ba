"""The documentation agrees with the code: tables, links, versions, commands and example scripts."""

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pytest

import riskmin
from helpers import customers, problem
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
def readme_losses():
    """For each class in the table of losses: its default instance, names, smoothness and solvers."""
    rows = table(read("README.md"), "loss")
    documented = {}
    for call, names, _, smooth, picks in rows:
        if match := re.fullmatch(r"`(\w+)(\(.*\))`", call):
            loss = eval(call.strip("`"), dict(LOSSES.own_classes))
            documented[match[1]] = loss, re.findall(r"`(\w+)`", names), smooth, re.findall(r"`(\w+)`", picks)
    return documented


def test_readme_lists_every_loss():
    documented = readme_losses()
    assert sorted(documented) == sorted({type(loss).__name__ for loss in LOSSES.values()})
    assert f"{len(documented)} losses in all" in read("README.md")
    names = [name for _, names, _, _ in documented.values() for name in names]
    assert sorted(names) == sorted(LOSSES)


@pytest.mark.parametrize("name", LOSSES)
def test_readme_describes_each_loss_correctly(name):
    loss = LOSSES[name]
    default, names, smooth, picks = readme_losses()[type(loss).__name__]
    assert LOSSES[names[0]] == default
    assert smooth == {True: "yes", False: "no"}[loss.smooth] or smooth.startswith("if")
    if loss.multi_output:
        y = np.eye(2) if loss.multi_output_targets else np.array([1.0, 0.0])
        lengths = [2] if loss.task == "tagging" else None
        risk = riskmin.linear_risk(np.eye(2), y, loss, lengths=lengths)
    elif loss.separable:
        X, y, _ = problem(loss)
        risk = riskmin.linear_risk(X, y, loss)
    else:
        qid = np.zeros(2) if loss.task == "ranking" else None
        y = np.array([1.0, -1.0 if qid is None else 0.0])
        risk = riskmin.linear_risk(np.eye(2), y, loss, qid=qid)
    J = riskmin.Objective(risk, riskmin.L2(), 1)
    assert type(riskmin.Auto().choose(J)[0]).__name__ in picks


def test_readme_lists_every_solver():
    listed = [row[0].strip("`") for row in table(read("README.md"), "solver")]
    offered = [n for n in dir(riskmin) if hasattr(getattr(riskmin, n), "iterates")]
    assert sorted(listed) == sorted(offered)


def test_tables_get_a_row_for_what_they_lack(monkeypatch):
    """A new loss needs no row written by hand; rows that are there are not changed."""
    monkeypatch.syspath_prepend(ROOT)
    from docs import tables

    assert tables.readme(lambda loss: ()) == read("README.md")
    assert tables.regularizers_page() == read("docs/regularizers.md")
    text = "| name | x |\n| --- | --- |\n| `Hinge(margin=1)` | |\n| others | |\n\nMore."
    known = {"Hinge": riskmin.Hinge(), "Huber": riskmin.Huber(delta=2.0)}
    added = tables.with_rows(text, "name", known, lambda loss: f"| {tables.signature(loss)} | new |")
    assert added == text.replace("| others", "| `Huber(delta=2)` | new |\n| others")


def test_architecture_lists_every_room_in_order():
    listed = [row[0].strip("`/") for row in table(read("docs/architecture.md"), "room")]
    tree = ast.parse(read("tests/test_layout.py"))
    (rooms,) = [n.value for n in tree.body if isinstance(n, ast.Assign) and n.targets[0].id == "ROOMS"]
    assert listed == ast.literal_eval(rooms)


def test_the_map_shows_the_order_of_a_fit(monkeypatch):
    """The map has the rooms of the architecture page, and a fit calls the numbered ones in order."""
    monkeypatch.syspath_prepend(ROOT)
    from docs import rooms

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


def test_versions_agree():
    version = riskmin.__version__
    assert tomllib.loads(read("pyproject.toml"))["project"]["version"] == version
    assert f"\nversion: {version}\n" in read("CITATION.cff")
    assert f"\n## {version}\n" in read("CHANGELOG.md")


# ---------------------------------------------------------------- links and pictures
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_resolve(page):
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))
    local = [link.partition("#")[0] for link in links if not re.match(r"https?:|#", link)]
    assert not [link for link in local if not (page.parent / link).exists()]


def test_every_decision_is_in_the_index():
    index = read("docs/adr/README.md")
    assert not [p.name for p in ROOT.glob("docs/adr/0*.md") if f"]({p.name})" not in index]


@pytest.mark.parametrize("name", ["rooms", "cuts", "convergence", "roc_a9a", "prbep_c11"])
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
    X, y = load_diabetes(return_X_y=True)
    columns = [*(f"f{j}" for j in range(10)), "price"]
    np.savetxt(
        folder / "houses.csv", np.column_stack([X, y]), delimiter=",", header=",".join(columns), comments=""
    )
    grade, X = np.digitize(y, [90, 140, 200]), X / X.std(axis=0)
    for name, rows in {"clicks": slice(300), "later": slice(300, None)}.items():
        save_svmlight(folder / f"{name}.svm", X[rows], grade[rows], np.arange(len(y))[rows] // 10)
    for name, last in {"patients": ["stage"], "visits": ["ward", "need"]}.items():
        lines = [",".join([*columns[:-1], *last])]
        for i, (x, k) in enumerate(zip(X.tolist(), grade.tolist(), strict=True)):
            cells = {"stage": ("mild", "fair", "serious", "grave")[k], "ward": f"ward {i // 20}", "need": k}
            lines.append(",".join(map(str, [*x, *(cells[column] for column in last)])))
        (folder / f"{name}.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    flowers = load_iris(as_frame=True)
    kinds = flowers.target_names[flowers.target]
    flowers.data.assign(kind=kinds).to_csv(folder / "flowers.csv", index=False)
    customers().to_csv(folder / "customers.csv", index=False)
    customers(seed=1).drop(columns="bought").to_csv(folder / "prospects.csv", index=False)
    (folder / "chunks.conll").write_text(SENTENCES, encoding="utf-8")
    bare = [" ".join(line.split()[:2]) for line in SENTENCES.splitlines()]
    (folder / "news.conll").write_text("\n".join(bare), encoding="utf-8")
    return folder


SENTENCES = """\
He PRP B-NP
reckons VBZ B-VP
the DT B-NP
current JJ I-NP
deficit NN I-NP
will MD B-VP
narrow VB I-VP
. . O

Rain NN B-NP
fell VBD B-VP
on IN B-PP
Monday NNP B-NP

The DT B-NP
markets NNS I-NP
reacted VBD B-VP
to TO B-PP
it PRP B-NP
"""


@pytest.mark.parametrize("page", ["README.md", "docs/command.md"])
def test_commands_run(page, files, monkeypatch, capsys):
    from riskmin.cli import main

    monkeypatch.chdir(files)
    lines = [line for block in blocks(page, "sh") for line in re.split(r"\n|&&", block)]
    commands = [shlex.split(line, comments=True)[1:] for line in lines if line.strip().startswith("riskmin ")]
    assert len(commands) >= 5
    for command in commands:
        assert main(command) == 0, (command, capsys.readouterr())


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this system")
def test_make_bench_requires_its_data():
    environment = {"PATH": os.environ["PATH"]}  # without the settings of an outer make
    done = subprocess.run(
        ["make", "bench"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "make bench DATA=folder" in line


@pytest.mark.exhaustive
@pytest.mark.parametrize("script", EXAMPLES, ids=name_of)
def test_examples_run(script):
    done = subprocess.run([sys.executable, "-W", "error", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout
