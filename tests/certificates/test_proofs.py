"""Proof files: they prove what they say, lies are refused, and two verifiers agree."""

import copy
import gzip
import json
import math
import random
import shutil
import subprocess
import sys
from decimal import Context, Decimal
from fractions import Fraction
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from benchmarks import proofs as campaign

import riskmin
from certificates.test_multipliers import COUNTS, FORMULAS, LABELS, REAL, SEVERAL, WEIGHTS, X, fitted
from riskmin import LinearClassifier, LinearRegressor, get_loss, verify

ROOT = Path(riskmin.__file__).parents[2]
VERIFIER = Path(verify.__file__)
POWERS = ["power_hinge:p=3", "squared_epsilon_insensitive", "epsilon_insensitive:power=1.5", "hinge:margin=2"]
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")


# ---------------------------------------------------------------- honest proofs
@pytest.mark.parametrize("loss", [*sorted(FORMULAS), *POWERS, *SEVERAL])
@pytest.mark.parametrize("regularizer", ["l2", "elastic"])
def test_proofs_are_as_tight_as_the_models(loss, regularizer):
    settings = {"regularizer": regularizer, "standardize": regularizer == "elastic", "sample_weight": WEIGHTS}
    model, y = fitted(loss, **settings)
    proof = model.prove(X, y, sample_weight=WEIGHTS)
    assert proof.value == pytest.approx(model.objective_, rel=1e-11)
    assert proof.gap <= 1.02 * model.gap_
    tight = fitted(loss, tol=1e-9, **settings)[0]
    assert proof.value - proof.gap <= tight.objective_ * (1 + 1e-14)


def exact_bound(record, X, y):
    """J of a hinge with L2 or L1 and its lower bound, in rational arithmetic, without the verifier."""
    n, k = len(y), record["bits"][3]
    w, b = [Fraction(v) for v in record["coef"][0]], Fraction(record["intercept"][0])
    u = [Fraction(v, 2**k) for v in record["multipliers"]]
    rows = [[Fraction(v) for v in row] for row in X.tolist()]
    alpha = Fraction(record["alpha"])
    scores = [sum(x * v for x, v in zip(row, w, strict=True)) + b for row in rows]
    margins = [s * z for s, z in zip(y, scores, strict=True)]
    J = sum(max(Fraction(0), 1 - m) for m in margins) / n + alpha * sum(v * v for v in w) / 2
    a = [sum(ui * row[j] for ui, row in zip(u, rows, strict=True)) / n for j in range(X.shape[1])]
    assert sum(u) == 0
    assert all(0 <= -s * ui <= 1 for s, ui in zip(y, u, strict=True))
    return J, -sum(s * ui for s, ui in zip(y, u, strict=True)) / n - sum(v * v for v in a) / (2 * alpha)


def test_the_bound_is_that_of_the_formula():
    model, y = fitted("hinge", tol=1e-6)
    record = model.prove(X, y).record
    J, bound = exact_bound(record, X, np.where(y == "yes", 1, -1).tolist())
    assert Fraction(record["gap"]) >= J - bound
    assert record["gap"] == pytest.approx(float(J - bound), rel=1e-9)


def test_exponentials_and_logarithms_are_bounds_near_the_numbers():
    context, rng = Context(prec=80), random.Random(0)
    for _ in range(300):
        x = rng.choice([rng.gauss(0, 1), rng.uniform(-700, 700), rng.gauss(0, 1e-9), 0.0])
        found, true = verify.exp_above(Fraction(x)), Fraction(context.exp(Decimal(x)))
        assert true < found < true * (1 + Fraction(1, 2**140))
        x = rng.choice(
            [rng.random(), 1e-12 * rng.random(), 1 - 1e-10 * rng.random(), 1e8 * rng.random(), 1.0]
        )
        found, true = verify.ln_above(Fraction(x)), Fraction(context.ln(Decimal(x)))
        assert true < found < true + Fraction(1, 2**80)
    assert verify.exp_above(Fraction(-(10**9))) < Fraction(1, 2**4000)


@pytest.mark.parametrize("rows", [X.astype(np.float32), sp.csc_array(X), 1e8 * X, 1e-12 * X], ids=range(4))
def test_other_rows(rows):
    y = LABELS["classification"]
    model = LinearClassifier("hinge", alpha=1e-2, standardize=True, class_weight="balanced").fit(rows, y)
    proof = model.prove(rows, y)
    assert proof.gap <= 1.02 * model.gap_
    assert len(proof.record["data"]["weight"]) == len(y)


REFUSALS = [
    (
        lambda: LinearClassifier("roc_area").fit(X, LABELS["classification"]),
        "classification",
        "no sum over rows",
    ),
    (lambda: LinearRegressor(positive=True).fit(X, REAL), "regression", "L1, L2 and Elastic without bounds"),
    (lambda: LinearRegressor(regularizer="entropy").fit(X, REAL), "regression", "not of Entropy"),
    (
        lambda: LinearClassifier(riskmin.MulticlassHinge(1 - np.eye(3))).fit(X, LABELS["multiclass"]),
        "multiclass",
        "no formula in proof files",
    ),
    (lambda: LinearRegressor().fit(X, 1e20 * REAL), "huge", "too large for a proof file"),
]


@pytest.mark.parametrize(("make", "task", "words"), REFUSALS)
def test_refusals(make, task, words):
    with pytest.raises(ValueError, match=words):
        make().prove(X, 1e20 * REAL if task == "huge" else LABELS[task])


def test_docs_list_the_losses_without_a_formula():
    page = (ROOT / "docs" / "proofs.md").read_text()
    without = page[page.index("## What has no proof file") :]
    formulas = {type(get_loss(name)) for name in [*FORMULAS, *POWERS, *SEVERAL]}
    for name, loss in riskmin.LOSSES.items():
        assert type(loss) in formulas or f"`{name}`" in without, name


# ---------------------------------------------------------------- files
@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Proofs and data, in files: the names of both, and whether they fit together."""
    folder = tmp_path_factory.mktemp("proofs")
    pairs = []
    for i, loss in enumerate([*sorted(FORMULAS), *POWERS, *SEVERAL]):
        weight = WEIGHTS if i % 2 else None
        regularizer = "l1" if i % 2 and loss not in SEVERAL else "l2"
        model, y = fitted(loss, sample_weight=weight, fit_intercept=bool(i % 3), regularizer=regularizer)
        proof = model.prove(X, y, sample_weight=weight)
        path, data = folder / f"{i}.proof", folder / f"{i}.svm"
        proof.save(path)
        proof.save_rows(data)
        pairs.append((path, data))
    return folder, pairs


def outcome(proof, data):
    """The verdict of verify.py as a lone file, in a process that imports nothing else."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", VERIFIER, proof, data], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


def page_outcomes(pairs):
    """The verdicts of the verifier of the site."""
    page, runner = ROOT / "docs" / "verify.html", Path(__file__).with_name("verify_page.mjs")
    files = [str(path) for pair in pairs for path in pair]
    out = subprocess.run(["node", runner, page, *files], capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in out.splitlines()]


def test_the_verifier_is_one_short_file_of_the_standard_library():
    text = VERIFIER.read_text()
    lines = [line.split() for line in text.splitlines() if line.startswith(("import ", "from "))]
    imported = {words[1].partition(".")[0] for words in lines}
    assert imported <= sys.stdlib_module_names
    assert len(text.splitlines()) <= 300


def test_the_lone_file_proves_and_refuses(saved):
    _, pairs = saved
    code, out, err = outcome(*pairs[0])
    assert (code, err) == (0, "")
    assert out.startswith("PROVED: J = ")
    code, out, err = outcome(pairs[0][0], pairs[-1][1])
    assert (code, err) == (1, "")
    assert out.startswith("NOT PROVED: ")
    assert outcome(pairs[0][0], "no such file")[0] == 2
    assert outcome(pairs[0][1], pairs[0][1])[0] == 2  # no gzip


def test_as_a_module_it_imports_no_numpy(saved):
    proof, data = saved[1][0]
    call = f"verify.main([{str(proof)!r}, {str(data)!r}])"
    code = f"import sys\nfrom riskmin import verify\n{call}\nprint('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("PROVED")
    assert done.stdout.endswith("False\n")


@needs_node
def test_the_page_agrees_on_honest_proofs(saved):
    _, pairs = saved
    for (proof, data), found in zip(pairs, page_outcomes(pairs), strict=True):
        record = json.loads(gzip.decompress(proof.read_bytes()))
        J, bound = verify.check(record, verify.read_rows(str(data), record["data"]))
        assert found["proved"], found
        assert found["value"] == pytest.approx(float(J), rel=1e-15)
        assert found["gap"] == pytest.approx(float(J - bound), rel=1e-9, abs=1e-25)


def test_tables_are_read_with_their_names(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b, c", 'say "d"', "e"])
    y = pd.Series(LABELS["classification"], name="bought")
    proof = LinearClassifier("logistic", alpha=1e-2).fit(frame, y).prove(frame, y)
    proof.save(tmp_path / "m.proof")
    table = frame.assign(bought=y)[["bought", *frame.columns[::-1]]]
    table.to_csv(tmp_path / "t.csv", index=False)
    table.to_csv(tmp_path / "t.tsv", index=False, sep="\t")
    proof.save_rows(tmp_path / "t.svm")
    pairs = [(tmp_path / "m.proof", tmp_path / name) for name in ("t.csv", "t.tsv", "t.svm")]
    assert [outcome(*pair)[0] for pair in pairs] == [0, 0, 0]
    if shutil.which("node"):
        assert all(found["proved"] for found in page_outcomes(pairs))


# ---------------------------------------------------------------- lies
@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    """The record of a proof, its data, and points at which no bound may exceed J."""
    folder = tmp_path_factory.mktemp("honest")
    y = COUNTS
    model = LinearRegressor("poisson", alpha=1e-2, tol=1e-4).fit(X, y, sample_weight=WEIGHTS)
    proof = model.prove(X, y, sample_weight=WEIGHTS)
    proof.save_rows(folder / "rows.svm")
    return proof.record, folder / "rows.svm"


def test_sizes_of_a_forged_proof_are_refused_before_they_are_computed_with(honest):
    record, data = honest
    lies = [record | {"bits": [10**9] * 4}, record | {"bits": [10**7, *record["bits"][1:]]}]
    lies += [record | {"data": record["data"] | {"columns": 10**9}, "coef": [0.0]}]
    for lie in lies:
        with pytest.raises((ValueError, TypeError)):
            verify.check(lie, verify.read_rows(str(data), lie["data"]))


@pytest.mark.parametrize("names", [["1.0", "2.0"], ["1", "0"], ["yes", "0"]])
def test_classes_that_are_texts_of_numbers_are_read_by_their_indices(names, tmp_path):
    y = np.where(REAL > 0, *names)
    proof = LinearClassifier("hinge", alpha=1e-2).fit(X, y).prove(X, y)
    proof.save(tmp_path / "m.proof")
    proof.save_rows(tmp_path / "rows.svm")
    pair = tmp_path / "m.proof", tmp_path / "rows.svm"
    assert outcome(*pair)[0] == 0
    if shutil.which("node"):
        assert page_outcomes([pair])[0]["proved"]


@pytest.mark.parametrize("factor", [1 - 1e-6, 0.5, 0.0, -1.0])
def test_a_smaller_gap_is_refused(honest, factor):
    record, data = honest
    with pytest.raises(ValueError, match="the proved gap is"):
        verify.check(record | {"gap": factor * record["gap"]}, verify.read_rows(str(data), record["data"]))


def test_random_alterations_prove_nothing_false(honest, tmp_path):
    record, data = honest
    rng, files = random.Random(0), []
    points = [(record["coef"], record["intercept"]), ([[0.0] * 4], [0.0])]
    for i in range(120):
        change = campaign.altered(record, rng)
        if change is None:
            continue
        accepted, bound, _ = campaign.judged(change[1], data)
        if accepted:
            assert not campaign.bound_is_false(change[1], data, points, bound), change[0]
        if i < 60:
            files.append((campaign.write(tmp_path, str(i), change[1]), data, accepted, change[0]))
    if shutil.which("node"):
        found = page_outcomes([pair[:2] for pair in files])
        assert [(each["proved"], kind) for each, (*_, kind) in zip(found, files, strict=True)] == [
            (accepted, kind) for *_, accepted, kind in files
        ]


def test_altered_data_are_refused(honest, tmp_path):
    record, data = honest
    rng = random.Random(0)
    for i in range(30):
        changed = campaign.altered_data(data.read_text(), rng)
        (tmp_path / f"{i}.svm").write_text(changed)
        if changed != data.read_text():
            assert not campaign.judged(record, tmp_path / f"{i}.svm")[0]


LIES = [
    (
        "multipliers that do not sum to zero",
        lambda r: r["multipliers"].__setitem__(0, r["multipliers"][0] + 1),
    ),
    ("a score of NaN", lambda r: r["coef"][0].__setitem__(0, math.nan)),
    ("a column too many", lambda r: r["coef"][0].append(0.0)),
    ("a concave penalty", lambda r: r.__setitem__("l2", -1.0)),
    ("an unknown loss", lambda r: r["loss"].__setitem__("name", "none")),
    ("a setting of another loss", lambda r: r["loss"].__setitem__("delta", 1.0)),
    ("classes of a regression", lambda r: r["data"].__setitem__("classes", [0, 1])),
    ("a row without multiplier", lambda r: r["multipliers"].pop()),
    ("a fraction as text", lambda r: r["coef"][0].__setitem__(0, "1/3")),
    ("an intercept without numbers", lambda r: r.__setitem__("intercept", [])),
    ("another format", lambda r: r.__setitem__("format", "riskmin proof 2")),
]


@pytest.mark.parametrize("lie", [lie for _, lie in LIES], ids=[name for name, _ in LIES])
def test_named_lies_are_refused(honest, lie):
    record, data = copy.deepcopy(honest[0]), honest[1]
    lie(record)
    assert not campaign.judged(record, data)[0]


def test_a_field_twice_and_a_column_twice_are_refused(honest, tmp_path):
    record, data = honest
    text = json.dumps(record)[:-1] + ', "gap": 0.0}'
    (tmp_path / "m.proof").write_bytes(gzip.compress(text.encode()))
    assert "a field twice" in outcome(tmp_path / "m.proof", data)[1]
    first, _, rest = data.read_text().partition("\n")
    (tmp_path / "d.svm").write_text(f"{first} {first.split()[-1]}\n{rest}")
    campaign.write(tmp_path, "h", record)
    assert "a column twice" in outcome(tmp_path / "h.proof", tmp_path / "d.svm")[1]
    if shutil.which("node"):
        found = page_outcomes([(tmp_path / "m.proof", data), (tmp_path / "h.proof", tmp_path / "d.svm")])
        assert ["twice" in each["reason"] for each in found] == [True, True]
