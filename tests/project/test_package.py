"""The package as a user imports it: light, with declared libraries and documented names."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import riskmin

ROOT = Path(riskmin.__file__).parent

LAZY = [
    "scipy.optimize",
    "numba",
    "highspy",
    "threadpoolctl",
    "sklearn",
    "joblib",
    "click",
    "rich",
    "safetensors",
    "array_api_compat",
    "pandas",
    "dask",
    "distributed",
    "mpi4py",
    "matplotlib",
    "grpc",
    "cryptography",
    "IPython",
]

MODULES = sorted(p for p in ROOT.rglob("*.py") if "__pycache__" not in p.parts)


def is_type_checking(node):
    test = node.test if isinstance(node, ast.If) else None
    return "TYPE_CHECKING" in (getattr(test, "id", ""), getattr(test, "attr", ""))


def imports(tree):
    """Every (module, name or None) that the code imports at run time, also inside functions."""
    for node in ast.iter_child_nodes(tree):
        if is_type_checking(node):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: write imports in full"
            yield from ((node.module, alias.name) for alias in node.names)
        else:
            yield from imports(node)


def public_homes():
    """The room of each name that `riskmin` exports."""
    homes = riskmin._LAZY | {
        name: module
        for module, registry in riskmin._REGISTRIES.items()
        for name in getattr(importlib.import_module(module), registry).own_classes
    }
    return {name: module.split(".")[1] for name, module in homes.items()}


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# ---------------------------------------------------------------- imports
def test_every_library_is_declared():
    """Each library is declared as a dependency or in an extra, not only installed as another's dependency."""
    project = tomllib.loads((ROOT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [name for names in project["optional-dependencies"].values() for name in names]
    declared = {re.match(r"[\w-]+", name)[0].replace("-", "_") for name in project["dependencies"] + extras}
    used = {module.split(".")[0] for path in MODULES for module, _ in imports(parse(path))}
    foreign = used - sys.stdlib_module_names - {"riskmin"}
    packages = {"sklearn": "scikit_learn", "grpc": "grpcio", "cupy": "cupy_cuda12x", "cupyx": "cupy_cuda12x"}
    packages["IPython"] = "ipython"
    assert {packages.get(name, name) for name in foreign} <= declared


def loaded_by(code, modules):
    """Those of the modules that a new process has imported after running the code."""
    script = f"import sys\n{code}\nprint([m for m in {modules!r} if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stderr.splitlines()[-1])


def test_import_of_the_package_is_light():
    everything = "from riskmin import (linear_risk, minimize, Objective, LOSSES, REGULARIZERS, SOLVERS)"
    assert loaded_by("import riskmin", ["numpy", *LAZY]) == []
    assert loaded_by(everything, LAZY) == []


def test_help_is_light():
    code = "from riskmin.cli import main\nmain(['--help'])"
    assert loaded_by(code, ["numpy", *(name for name in LAZY if name != "click")]) == []


def test_a_small_fit_by_the_command_is_light(tmp_path):
    """Importing scikit-learn takes longer than the fit, and so does compiling the parser of large files."""
    rows = "".join(f"{(-1) ** i} 1:{i % 7} 2:{i * i % 11} 3:{(-1) ** i}\n" for i in range(60))
    (tmp_path / "rows.svm").write_text(rows, encoding="utf-8")
    model, data = str(tmp_path / "rows.riskmin"), str(tmp_path / "rows.svm")
    heavy = [
        "sklearn",
        "pandas",
        "scipy.stats",
        "scipy.special",
        "joblib",
        "asyncio",
        "pyarrow",
        "polars",
        "dask",
    ]
    for arguments in (["fit", data, "-o", model], ["predict", model, data]):
        code = f"sys.argv[1:] = {arguments!r}\nfrom riskmin.cli import main\nassert main() == 0"
        assert loaded_by(code, [*heavy, "riskmin._numba.svmlight_parser"]) == []


def test_the_table_of_commands_is_complete():
    """A command that is missing there would be unknown."""
    import click

    from riskmin.cli.commands import COMMANDS

    modules = {path.stem for path in (ROOT / "cli" / "commands").glob("*.py")} - {"__init__"}
    found = {
        name: module
        for module in modules
        for name, thing in vars(importlib.import_module(f"riskmin.cli.commands.{module}")).items()
        if isinstance(thing, click.Command)
    }
    assert found == {name: module for name, (module, _) in COMMANDS.items()}


# ---------------------------------------------------------------- what users see
# The workers of Processes are spawned and would run the module of the docstring again.
NO_EXAMPLE = {"Processes"}


def public():
    return {name: getattr(riskmin, name) for name in riskmin.__all__}


@pytest.mark.parametrize("name", sorted(n for n, item in public().items() if callable(item)))
def test_public_names_are_documented(name):
    item = public()[name]
    text = inspect.getdoc(item) or ""
    assert len(text) > 20
    if not (isinstance(item, type) and issubclass(item, Exception)):
        assert (">>>" in text) == (name not in NO_EXAMPLE)


def test_a_star_imports_exactly_what_is_public():
    """Every public name, eager or lazy, and nothing else."""
    scope = {}
    exec("from riskmin import *", scope)
    assert scope.keys() - {"__builtins__"} == set(riskmin.__all__)
    assert public_homes().keys() == set(riskmin.__all__)
    assert set(riskmin.__all__) <= set(dir(riskmin))


def test_lazy_names_have_their_rooms():
    """They are where type checkers are told that they are, by name or by a star."""
    nodes = ast.walk(parse(ROOT / "__init__.py"))
    froms = [
        node for node in nodes if isinstance(node, ast.ImportFrom) and node.module.startswith("riskmin.")
    ]
    imported = {(node.module, alias.name) for node in froms for alias in node.names}
    stars = {module for module, name in imported if name == "*"}
    assert stars == {"riskmin.estimators", *riskmin._REGISTRIES}
    named = {(module, name) for name, module in riskmin._LAZY.items() if module not in stars}
    assert named == {(module, name) for module, name in imported if module not in stars}
    with pytest.raises(AttributeError, match="module 'riskmin' has no attribute 'Hinges'"):
        _ = riskmin.Hinges


def test_public_aliases_are_the_same_objects():
    from riskmin.data import load
    from riskmin.testing import check_loss

    assert riskmin.load_data is load
    assert riskmin.check_loss is check_loss


def documented_parameters(node):
    """The names in the section "Parameters" of a numpydoc docstring."""
    text = ast.get_docstring(node) or ""
    section = re.search(r"\nParameters\n-+\n(.*?)(\n\n[A-Z][A-Za-z ]+\n-+\n|\Z)", text, re.S)
    lines = section[1].splitlines() if section else []
    heads = [line.partition(" : ")[0] for line in lines if line and not line.startswith(" ")]
    return {name.strip(" *") for head in heads for name in head.split(",")}


def test_documented_parameters_exist():
    nodes = [node for path in MODULES for node in ast.walk(parse(path))]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}

    def parameters(node):
        """Arguments; of a class those of its methods, its fields, and all of its bases."""
        names = {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
        if isinstance(node, ast.ClassDef):
            fields = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
            names |= {target.id for target in fields if isinstance(target, ast.Name)}
            bases = [
                classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes
            ]
            names = names.union(*map(parameters, bases))
        return names

    documented = [node for node in nodes if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    wrong = {node.name: sorted(documented_parameters(node) - parameters(node)) for node in documented}
    assert not {name: parameters for name, parameters in wrong.items() if parameters}
