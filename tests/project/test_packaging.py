"""Requirements agree wherever they are written: the conda recipe, examples, messages, benchmarks."""

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks import footprint  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


def test_the_conda_recipe_has_the_requirements_of_the_package():
    recipe = yaml.safe_load((ROOT / "conda-recipe" / "recipe.yaml").read_text(encoding="utf-8"))
    python = f"python {PROJECT['requires-python']}"
    needed = [re.sub(r"([^<>=~! ]+)", r"\1 ", name, count=1) for name in PROJECT["dependencies"]]
    assert recipe["requirements"]["run"] == [python, *needed]
    assert python in recipe["requirements"]["host"]
    assert recipe["build"]["python"]["entry_points"] == [
        f"{name} = {target}" for name, target in PROJECT["scripts"].items()
    ]
    assert recipe["about"]["summary"] == PROJECT["description"]


def test_the_classifiers_are_versions_that_the_package_allows():
    versions = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert versions[0] == PROJECT["requires-python"].removeprefix(">=")
    assert all(version in SpecifierSet(PROJECT["requires-python"]) for version in versions)
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert running in versions, f"Python {running} is tested: add its classifier"


def test_examples_declare_what_they_need():
    """A package that riskmin does not require is in the block of script metadata (PEP 723) of an example."""
    owners, site = packages_distributions(), [*EXTRAS["plot"], *EXTRAS["tables"]]
    for path in sorted((ROOT / "examples").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        block = re.search(r"^# dependencies = (\[.*\])$", text, re.MULTILINE)
        declared = ast.literal_eval(block[1]) if block else site if path.parent.name == "gallery" else []
        allowed = {canonicalize_name(Requirement(one).name) for one in [*PROJECT["dependencies"], *declared]}
        for node in ast.walk(ast.parse(text)):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"riskmin"}:
                assert canonicalize_name(owners[name][0]) in allowed, f"{path.name} imports {name}"


def test_messages_name_extras_that_exist():
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    named = re.findall(r"extra_hint\([\"'](\w+)[\"']", text)
    assert len(named) >= 8
    assert set(named) <= set(EXTRAS)


def test_the_footprint_counts_every_requirement_once():
    direct = footprint.requirements("riskmin")
    assert {"numba", "scipy", "scikit-learn"} <= set(direct)
    everything = footprint.closure(direct)
    assert "llvmlite" in everything  # through Numba
    assert "llvmlite" not in footprint.closure(direct, without="numba")
    assert footprint.total(everything) > footprint.megabytes("scipy") > 10
    cpu, text = footprint.cpu_seconds(["-X", "importtime", "-c", "import json"])
    assert cpu > 0
    assert "json.decoder" in text
