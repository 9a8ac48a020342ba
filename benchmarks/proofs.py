"""Proof files of random fits, of all losses: are they tight, and is every lie refused, by both verifiers?

    python -m benchmarks.proofs fits [--n 200] [--seed 0] [--lies 25] [--out proofs.json]
    python -m benchmarks.proofs sizes [--rows 1000 30000 500000]

`fits` draws a problem for each seed: a loss, a penalty (L2, L1, both, factors, standardized columns), columns
of scales 1e-6 to 1e6, weights, an intercept, a tolerance. It proves the fit, writes proof and data to files,
checks them with verify.py and, if Node.js is there, with docs/verify.html, and then alters the proof or the
data at random. A proof is false if its bound exceeds J at any of the points that are tried, a tight fit among
them. A stopped run resumes from the file. `sizes` measures CPU seconds and bytes.
"""

from __future__ import annotations

import argparse
import copy
import gzip
import json
import random
import shutil
import subprocess
import tempfile
import time
import warnings
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import riskmin as rm
from riskmin import verify
from riskmin.data import save_svmlight

ROOT = Path(__file__).parents[1]
PAGE, RUNNER = ROOT / "docs" / "verify.html", ROOT / "tests" / "certificates" / "verify_page.mjs"
LOSSES = {
    "two": ["hinge", "perceptron", "squared_hinge", "power_hinge", "power_hinge:p=3", "smoothed_hinge",
            "logistic", "exponential"],
    "number": ["squared", "absolute", "quantile:level=0.3", "huber", "epsilon_insensitive",
               "epsilon_insensitive:epsilon=0.5,power=1.5", "squared_epsilon_insensitive"],
    "count": ["poisson"],
    "classes": ["softmax", "multiclass_hinge", "multiclass_squared_hinge"],
}  # fmt: skip
KIND_OF = {loss: kind for kind, names in LOSSES.items() for loss in names}
EVERY = 20
"""Fits between two runs of the other verifier, and between two writes of the file."""


def draw(seed: int) -> tuple[Any, Any, Any, Any]:
    """A model, its rows, and their labels and weights."""
    rng = np.random.default_rng(seed)
    loss = sorted(KIND_OF)[seed % len(KIND_OF)]
    n, p = int(rng.integers(16, 200)), int(rng.integers(1, 9))
    scales = 10.0 ** rng.uniform(-6, 6) * 10.0 ** (rng.uniform(-2, 2, p) * rng.integers(2))
    X = rng.standard_normal((n, p)) * (rng.random((n, p)) < rng.choice([0.3, 1.0]))
    z = X @ rng.standard_normal(p) + rng.uniform(0, 2) * rng.standard_normal(n)
    y: Any = {
        "two": lambda: np.where(z > np.median(z), "yes", "no"),
        "number": lambda: z * 10.0 ** rng.uniform(-6, 6),
        "count": lambda: rng.poisson(np.exp(np.clip(z, -5, 3))).astype(float),
        "classes": lambda: np.digitize(z, np.quantile(z, [0.3, 0.7])),
    }[KIND_OF[loss]]()
    weight = None if rng.random() < 0.6 else rng.random(n) * (rng.random(n) < 0.9) + (np.arange(n) < 8)
    factors = 10.0 ** rng.uniform(-1, 1, p)
    penalty = rng.choice(["l2", "l1", "elastic", "factors", "standardize"])
    settings: dict[str, Any] = {"regularizer": penalty} if penalty in ("l2", "l1", "elastic") else {}
    if penalty == "factors":
        settings = {"regularizer": rng.choice([rm.L2(factors), rm.L1(factors), rm.Elastic(0.5, factors)])}  # type: ignore[arg-type]
    settings |= {"standardize": True} if penalty == "standardize" or rng.random() < 0.5 else {}
    if KIND_OF[loss] in ("two", "classes") and rng.random() < 0.3:
        settings["class_weight"] = "balanced"
    kind = rm.LinearClassifier if KIND_OF[loss] in ("two", "classes") else rm.LinearRegressor
    settings |= {"alpha": 10.0 ** rng.uniform(-4, 0), "tol": 10.0 ** rng.uniform(-8, -2)}
    model = kind(loss, fit_intercept=bool(rng.random() < 0.7), max_seconds=20, **settings)
    return model, X * scales, y, weight


# ---------------------------------------------------------------- lies
def places_of(record: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The fields of a proof, and one entry of each list."""
    found = [path] if path else []
    items = (
        record.items() if isinstance(record, dict) else enumerate(record) if isinstance(record, list) else ()
    )
    for key, value in items:
        if not isinstance(record, list) or key in (0, len(record) - 1):
            found += places_of(value, (*path, key))
    return found


OPERATIONS: dict[str, Any] = {
    "zero": lambda v: 0,
    "one": lambda v: 1,
    "negative": lambda v: -v,
    "half": lambda v: v / 2,
    "double": lambda v: 2 * v,
    "a little more": lambda v: v * (1 + 1e-9),
    "a little less": lambda v: v * (1 - 1e-9),
    "one more": lambda v: v + 1,
    "one less": lambda v: v - 1,
    "huge": lambda v: 1e300,
    "tiny": lambda v: 5e-324,
    "large integer": lambda v: 2**53,
    "null": lambda v: None,
    "text": str,
    "in a list": lambda v: [v],
    "an object": lambda v: {"value": v},
    "reversed": lambda v: v[::-1],
    "shorter": lambda v: v[:-1],
    "longer": lambda v: [*v, *v[:1]],
    "exchanged": lambda v: [v[-1], *v[1:-1], v[0]],
    "empty": lambda v: type(v)(),
    "all double": lambda v: [2 * x for x in v],
    "all zero": lambda v: [0 * x for x in v],
    "other loss": lambda v: random.Random(str(v)).choice(sorted(verify.LOSSES)),
}


def altered(record: dict[str, Any], rng: random.Random) -> tuple[str, dict[str, Any]] | None:
    """A proof with one field altered, and the kind of the alteration; None where it changes nothing."""
    path, name = rng.choice(places_of(record)), rng.choice(sorted(OPERATIONS))
    changed = copy.deepcopy(record)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    try:
        parent[path[-1]] = OPERATIONS[name](parent[path[-1]])
        if json.dumps(changed, allow_nan=False) == json.dumps(record):
            return None
    except (TypeError, ValueError, KeyError, IndexError, OverflowError):
        del parent[path[-1]]
        name = "missing"
    kind = ".".join(str(key) if isinstance(key, str) else "entry" for key in path)
    return f"{kind}: {name}", changed


def altered_data(text: str, rng: random.Random) -> str:
    """A data file with one cell, or one row, changed."""
    lines = text.splitlines(keepends=True)
    i = rng.randrange(1, len(lines) - 1)
    digits = [j for j, c in enumerate(lines[i]) if c in "123456789"]
    choice = rng.randrange(4)
    if choice == 0 and digits:
        j = rng.choice(digits)
        lines[i] = lines[i][:j] + str(10 - int(lines[i][j]))[-1] + lines[i][j + 1 :]
    elif choice == 1:
        del lines[i]
    elif choice == 2:
        lines.insert(i, lines[i])
    else:
        lines[i], lines[-1] = lines[-1], lines[i]
    return "".join(lines)


# ---------------------------------------------------------------- one fit
def bound_is_false(record: dict[str, Any], path: Path, coefs: list[Any], bound: Fraction) -> bool:
    """Whether a bound exceeds J at one of the points."""
    for coef, intercept in coefs:
        try:
            numbers = [v for w in coef for v in w]
            bits = [*record["bits"]]
            bits[1] = max((v.as_integer_ratio()[1].bit_length() - 1 for v in numbers), default=0)
            tried = record | {"coef": coef, "intercept": intercept, "bits": bits, "gap": 1e308}
            J = verify.check(tried, verify.read_rows(str(path), record["data"]))[0]
        except Exception:
            continue
        if bound > J:
            return True
    return False


def judged(record: dict[str, Any], path: Path) -> tuple[bool, Fraction, str]:
    """Whether a proof is accepted, the bound, and the reason."""
    try:
        return True, verify.check(record, verify.read_rows(str(path), record["data"]))[1], ""
    except Exception as error:
        return False, Fraction(0), f"{type(error).__name__}: {error}"


def write(folder: Path, name: str, record: dict[str, Any]) -> Path:
    path = folder / f"{name}.proof"
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    return path


def one(seed: int, folder: Path, n_lies: int) -> dict[str, Any]:
    """Fit, prove, check and lie; the files of the other verifier are left in the folder."""
    model, X, y, weight = draw(seed)
    rng = random.Random(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model.fit(X, y, sample_weight=weight)
        except ValueError as error:
            return {"seed": seed, "refused": str(error)}
        found: dict[str, Any] = {"seed": seed, "loss": model.loss, "status": model.result_.status}
        try:
            proof = model.prove(X, y, sample_weight=weight)
        except ValueError as error:
            return found | {"not provable": str(error)}
        tight = copy.copy(model).set_params(tol=1e-12, atol=0.0, max_seconds=2)
        tight.fit(X, y, sample_weight=weight)
    k, p = len(proof.record["coef"]), X.shape[1]
    w = np.asarray(tight.result_.w)
    b = w[p * k :] if k > 1 else np.array([float(tight._intercepts()[0])])
    coefs = [
        (proof.record["coef"], proof.record["intercept"]),
        (w[: p * k].reshape(p, k).T.tolist(), b.tolist() if model.fit_intercept else None),
        ([[0.0] * p] * k, [0.0] * k if model.fit_intercept else None),
    ]
    data = folder / f"{seed}.svm"
    proof.save_rows(data)
    genuine = write(folder, f"{seed}", proof.record)
    accepted, bound, reason = judged(proof.record, data)
    found |= {
        "claimed": model.gap_,
        "proved": proof.gap,
        "value": proof.value,
        "bytes": genuine.stat().st_size,
    }
    found |= {"accepted": accepted, "reason": reason, "files": [(genuine.name, data.name, accepted)]}
    found["false"] = int(bound_is_false(proof.record, data, coefs, bound))
    found |= {"lies": 0, "kinds": [], "true alterations": 0, "accepted lies": []}
    for i in range(n_lies):
        lie_data, record, kind = data, proof.record, ""
        if i % 5 == 0:
            kind, lie_data = "data", folder / f"{seed}-{i}.svm"
            lie_data.write_text(altered_data(data.read_text(), rng))
            if lie_data.read_text() == data.read_text():
                continue
        else:
            change = altered(proof.record, rng)
            if change is None:
                continue
            kind, record = change
        accepted, bound, _ = judged(record, lie_data)
        found["lies"] += not accepted
        found["kinds"].append(kind)
        if accepted:  # another statement, which may be true: a larger gap, another format of the same number
            if kind == "data" or bound_is_false(record, lie_data, coefs, bound):
                found["accepted lies"].append(kind)
            else:
                found["true alterations"] += 1
        if i < 10:
            name = write(folder, f"{seed}-{i}", record).name
            found["files"].append((name, lie_data.name, accepted))
    return found


def compare(reports: list[dict[str, Any]], folder: Path) -> int:
    """How many verdicts of the other verifier differ; 0 without Node.js."""
    if shutil.which("node") is None:
        return 0
    files = [file for report in reports for file in report.get("files", ())]
    names = [str(folder / name) for proof, data, _ in files for name in (proof, data)]
    out = subprocess.run(["node", RUNNER, PAGE, *names], capture_output=True, text=True, check=True).stdout
    verdicts = [json.loads(line) for line in out.splitlines()]
    differ = 0
    for (proof, data, accepted), verdict in zip(files, verdicts, strict=True):
        if verdict["proved"] != accepted:
            differ += 1
            print(f"{proof}, {data}: verify.py says {accepted}, the page {verdict}", flush=True)
    return differ


def summary(state: dict[str, Any]) -> str:
    """The table of a run."""
    done = [r for r in state["reports"] if "proved" in r]
    converged = [r for r in done if r["status"] == "converged"]
    tight = [r for r in converged if r["proved"] <= 2 * r["claimed"] + 1e-300]
    near = [r for r in converged if r["proved"] <= max(2 * r["claimed"], 1e-9 * r["value"])]
    missing = [r for r in state["reports"] if "not provable" in r and r["status"] == "converged"]
    kinds = Counter(kind for r in done for kind in r["kinds"])
    lines = [
        f"fits {len(state['reports'])}, proved {len(done)}, of which converged {len(converged)}",
        f"converged, {len(converged) + len(missing)}: proved within 2 times the claimed gap {len(tight)}, "
        f"or 1e-9 of J {len(near)}",
        f"proofs that verify.py does not accept: {sum(not r['accepted'] for r in done)}",
        f"false proofs: {sum(r['false'] for r in done)}",
        f"alterations refused {sum(r['lies'] for r in done)}, of {len(kinds)} kinds; "
        f"true statements {sum(r['true alterations'] for r in done)}; "
        f"lies accepted {sum(len(r['accepted lies']) for r in done)}",
        f"verdicts {sum(len(r['files']) for r in done)}; the verifiers differ on {state['differ']}",
    ]
    by_loss = Counter(r["loss"] for r in converged), Counter(r["loss"] for r in tight)
    lines += [f"  {loss}: {by_loss[1][loss]} of {by_loss[0][loss]}" for loss in sorted(by_loss[0])]
    return "\n".join(lines)


def run_fits(args: argparse.Namespace) -> None:
    state: dict[str, Any] = {"seed": args.seed, "reports": [], "differ": 0}
    if args.out.exists():
        state = json.loads(args.out.read_text())
    first = state["seed"] + len(state["reports"])
    for start in range(first, args.seed + args.n, EVERY):
        with tempfile.TemporaryDirectory() as name:
            reports = [
                one(seed, Path(name), args.lies)
                for seed in range(start, min(start + EVERY, args.seed + args.n))
            ]
            state["differ"] += compare(reports, Path(name))
        state["reports"] += reports
        args.out.write_text(json.dumps(state))
        print(f"{len(state['reports'])} fits", flush=True)
    print(summary(state))


# ---------------------------------------------------------------- sizes
def run_sizes(args: argparse.Namespace) -> None:
    print("| rows x columns | loss, tol | data | proof | prove | verify | J - min J claimed, proved |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for n in args.rows:
        p = {1000: 20, 30_000: 120}.get(n, 50)
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, p)).round(6)
        y = np.sign(X @ rng.standard_normal(p) / np.sqrt(p) + 0.5 * rng.standard_normal(n))
        for loss, tol in (("hinge", 1e-3), ("logistic", 1e-6)):
            model = rm.LinearClassifier(loss, alpha=1e-3, tol=tol).fit(X, y)
            with tempfile.TemporaryDirectory() as name:
                data, path = Path(name, "rows.svm"), Path(name, "model.proof")
                save_svmlight(data, X, y)
                began = time.process_time()
                proof = model.prove(X, y)
                proved = time.process_time()
                proof.save(path)
                verify.check(proof.record, verify.read_rows(str(data), proof.record["data"]))
                checked = time.process_time()
                print(
                    f"| {n:,} x {p} | {loss}, {tol:g} | {data.stat().st_size / 2**20:.1f} MiB | "
                    f"{path.stat().st_size / 1024:.1f} KiB | {proved - began:.2f} s | "
                    f"{checked - proved:.2f} s | {model.gap_:.2g}, {proof.gap:.2g} |",
                    flush=True,
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.proofs", description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    tasks = parser.add_subparsers(dest="task", required=True)
    fits = tasks.add_parser("fits")
    fits.add_argument("--n", type=int, default=200)
    fits.add_argument("--seed", type=int, default=0)
    fits.add_argument("--lies", type=int, default=25, help="alterations of each proof")
    fits.add_argument("--out", type=Path, default=Path("proofs.json"))
    sizes = tasks.add_parser("sizes")
    sizes.add_argument("--rows", type=int, nargs="+", default=[1000, 30_000])
    args = parser.parse_args()
    run_fits(args) if args.task == "fits" else run_sizes(args)


if __name__ == "__main__":
    main()
