"""The package as a user imports it: light, with requirements that agree and documented names."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import click
import pytest
from benchmarks import footprint
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import riskmin
from riskmin.cli import main

PACKAGE = Path(riskmin.__file__).parent
ROOT = PACKAGE.parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


@cache
def nodes():
    """Every node of the package's code, and whether it is for type checkers only."""
    found = []

    def visit(node, typing):
        test = getattr(node, "test", None)
        typing = typing or "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))
        found.append((node, typing))
        for child in ast.iter_child_nodes(node):
            visit(child, typing)

    for path in sorted(PACKAGE.rglob("*.py")):
        visit(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)), False)
    return found


# ---------------------------------------------------------------- imports
def test_every_library_is_declared():
    """Each library is declared as a dependency or in an extra, not only installed as another's dependency."""
    extras = [name for names in EXTRAS.values() for name in names]
    declared = {re.match(r"[\w-]+", name)[0].replace("-", "_") for name in PROJECT["dependencies"] + extras}
    used = set()
    for node in (node for node, typing in nodes() if not typing):
        if isinstance(node, ast.Import):
            used |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full"
            used.add(node.module.split(".")[0])
    packages = {"sklearn": "scikit_learn", "grpc": "grpcio", "IPython": "ipython"}
    packages |= dict.fromkeys(("cupy", "cupyx"), "cupy_cuda12x")
    assert {packages.get(name, name) for name in used - sys.stdlib_module_names - {"riskmin"}} <= declared


HEAVY = {"pandas", "polars", "pyarrow", "sklearn", "joblib", "dask", "distributed", "mpi4py", "matplotlib"}
HEAVY |= {"grpc", "cryptography", "IPython", "array_api_compat", "asyncio", "scipy.stats", "scipy.special"}
"""What no small fit needs."""
LAZY = HEAVY | {"scipy.optimize", "numba", "highspy", "threadpoolctl", "click", "safetensors"}
"""What no import needs."""


def loaded_by(*steps):
    """The modules that a new process has imported after each step."""
    show = "print(*sys.modules, file=sys.stderr)"
    script = "\n".join(["import sys", *(f"{step}\n{show}" for step in steps)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return [set(line.split()) for line in done.stderr.splitlines()]


def test_imports_and_help_are_light():
    package, help_page, names, data = loaded_by(
        "import riskmin",
        "from riskmin.cli import main\nmain(['--help'])",
        "from riskmin import linear_risk, minimize, Objective, LOSSES, REGULARIZERS, SOLVERS",
        "import riskmin.cli, riskmin.data",
    )
    assert not package & (LAZY | {"numpy"})
    assert not data & {"numba", "sklearn", "pandas", "pyarrow"}
    assert not help_page & (LAZY - {"click"} | {"numpy"})
    assert not names & (LAZY - {"click"})


def test_a_small_fit_by_the_command_is_light(tmp_path):
    """Importing scikit-learn takes longer than the fit, and so does compiling the parser of large files."""
    rows = "".join(f"{(-1) ** i} 1:{i % 7} 2:{i * i % 11} 3:{(-1) ** i}\n" for i in range(60))
    (tmp_path / "rows.svm").write_text(rows, encoding="utf-8")
    model, data = str(tmp_path / "rows.riskmin"), str(tmp_path / "rows.svm")
    commands = (["fit", data, "-o", model, "--quiet"], ["predict", model, data])
    call = "sys.argv[1:] = {}\nfrom riskmin.cli import main\nassert main() == 0"
    for found in loaded_by(*map(call.format, commands)):
        assert not found & (HEAVY | {"riskmin._numba.svmlight_parser"})


def test_help_lists_every_command(capsys):
    """A command that is missing there would be unknown."""
    assert main(["--help"]) == 0
    commands = capsys.readouterr().out.partition("Commands:")[2].partition("\n\n")[0]
    listed = re.findall(r"^  (\w+)", commands, re.M)
    modules = {path.stem for path in (PACKAGE / "cli" / "commands").glob("*.py")} - {"__init__"}
    found = {
        name
        for module in modules
        for name, thing in vars(importlib.import_module(f"riskmin.cli.commands.{module}")).items()
        if isinstance(thing, click.Command)
    }
    assert found == set(listed)


# ---------------------------------------------------------------- what users see
# The workers of Processes are spawned and would run the module of the docstring again.
NO_EXAMPLE = {"Processes"}


@pytest.mark.parametrize("name", sorted(n for n in riskmin.__all__ if callable(getattr(riskmin, n))))
def test_public_names_are_documented(name):
    item = getattr(riskmin, name)
    text = inspect.getdoc(item) or ""
    assert len(text) > 20
    if not (isinstance(item, type) and issubclass(item, Exception)):
        assert (">>>" in text) == (name not in NO_EXAMPLE)


def typed_names(module):
    """The names that a module imports or has, as type checkers see them."""
    names = set() if module is riskmin else set(dir(module))
    for node in ast.walk(ast.parse(Path(module.__file__).read_text(encoding="utf-8"))):
        for alias in node.names if isinstance(node, ast.ImportFrom) else ():
            star = alias.name == "*" and node.module.startswith("riskmin.")
            names |= typed_names(importlib.import_module(node.module)) if star else {alias.name}
    return names


def test_a_star_imports_exactly_what_is_public():
    """Every public name, eager or lazy, and nothing else; the same for type checkers."""
    scope = {}
    exec("from riskmin import *", scope)
    assert scope.keys() - {"__builtins__"} == set(riskmin.__all__) <= set(dir(riskmin))
    assert set(riskmin.__all__) <= typed_names(riskmin)
    with pytest.raises(AttributeError, match="module 'riskmin' has no attribute 'Hinges'"):
        _ = riskmin.Hinges
    assert riskmin.load_data is importlib.import_module("riskmin.data").load
    assert riskmin.check_loss is importlib.import_module("riskmin.testing").check_loss


def documented_parameters(node):
    """The names in the section "Parameters" of a numpydoc docstring."""
    text = ast.get_docstring(node) or ""
    section = re.search(r"\nParameters\n-+\n(.*?)(\n\n[A-Z][A-Za-z ]+\n-+\n|\Z)", text, re.S)
    lines = section[1].splitlines() if section else []
    heads = [line.partition(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return {name.strip(" *") for head in heads for name in head.split(",")}


def test_documented_parameters_exist():
    documented = [node for node, _ in nodes() if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    classes = {node.name: node for node in documented if isinstance(node, ast.ClassDef)}

    def parameters(node):
        """Arguments; of a class those of its methods, its fields, and all of its bases."""
        names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        if isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names |= {target.id for target in fields if isinstance(target, ast.Name)}
            bases = [classes[base.id] for base in node.bases if getattr(base, "id", None) in classes]
            names = names.union(*map(parameters, bases))
        return names

    with_section = [(node, documented_parameters(node)) for node in documented]
    wrong = {node.name: names - parameters(node) for node, names in with_section if names}
    assert not {name: names for name, names in wrong.items() if names}


# ---------------------------------------------------------------- requirements
def test_the_conda_recipe_has_the_requirements_of_the_package():
    yaml = pytest.importorskip("yaml")
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
    text = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
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
