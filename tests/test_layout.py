"""The layout: imports point downwards, libraries stay in their rooms, files and functions are short."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

import riskmin

ROOT = Path(riskmin.__file__).parent

# In the order of the data: a room may import the rooms before it and any of its own files.
ROOMS = [
    "core",
    "_numba",
    "_cuda",
    "arrays",
    "numerics",
    "linear_maps",
    "losses",
    "regularizers",
    "executors",
    "problem",
    "solvers",
    "driver",
    "metrics",
    "report",
    "data",
    "estimators",
    "owners",
    "cli",
    "testing",
]

# The rooms that may import each heavy or optional library.
# The command takes metrics and the data of the demonstration from scikit-learn.
HOMES = {
    "numba": {"_numba"},
    "sklearn": {"estimators", "cli", "testing"},
    "joblib": {"estimators"},
    "torch": {"arrays"},
    "cupy": {"arrays", "_cuda"},
    "cupyx": {"arrays", "_cuda"},
    "array_api_compat": {"arrays"},
    "safetensors": {"core"},
    "highspy": {"solvers"},
    "threadpoolctl": {"core"},
    "pyarrow": {"data"},
    "pandas": {"data"},
    "polars": {"data"},
    "dask": {"executors"},
    "distributed": {"executors"},
    "mpi4py": {"executors"},
    "grpc": {"owners"},
    "cryptography": {"owners"},
    "click": {"cli"},
    "rich": {"cli", "report"},
    "IPython": {"report"},
    "matplotlib": {"core"},
}

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

MAX_LINES = 500
MAX_FUNCTION_LINES = 60
MAX_FILES = 12

OUTSIDE_OF_ROOMS = {ROOT / "__init__.py", ROOT / "__main__.py"}
MODULES = sorted(p for p in ROOT.rglob("*.py") if p not in OUTSIDE_OF_ROOMS and "__pycache__" not in p.parts)
each_module = pytest.mark.parametrize("path", MODULES, ids=lambda p: p.relative_to(ROOT).as_posix())


def room(path):
    """The room of a file: its first folder."""
    return path.relative_to(ROOT).parts[0]


def family(module):
    """The solver family of a module, or None: `riskmin.solvers.newton.newton` is of the family `newton`."""
    parts = module.split(".")
    inside = parts[:2] == ["riskmin", "solvers"] and len(parts) > 2
    return parts[2] if inside and (ROOT / "solvers" / parts[2]).is_dir() else None


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


def own_imports(tree):
    """The rooms that the code imports. `__version__` belongs to the package and is below all rooms."""
    names = []
    for module, name in imports(tree):
        parts = module.split(".")
        if parts[0] == "riskmin" and len(parts) > 1:
            yield parts[1]
        elif parts[0] == "riskmin" and name is not None:
            names.append(name)
    if ("riskmin", None) in imports(tree):
        names += [
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "riskmin"
        ]
    homes = public_homes()
    yield from (homes.get(name, name) for name in names if name != "__version__")


def parse(path):
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


# ---------------------------------------------------------------- imports
def test_every_file_is_in_a_room():
    assert {room(path) for path in MODULES} == set(ROOMS)
    assert set(ROOT.glob("*.py")) == OUTSIDE_OF_ROOMS


@each_module
def test_imports_point_downwards(path):
    own_room = room(path)
    allowed = {own_room, *ROOMS[: ROOMS.index(own_room)]}
    assert set(own_imports(parse(path))) <= allowed


def test_solver_families_do_not_import_each_other():
    """Code that several families need is in `solvers/base.py`."""
    edges = set()
    for path in (ROOT / "solvers").rglob("*.py"):
        source = family(".".join(["riskmin", *path.relative_to(ROOT).with_suffix("").parts]))
        targets = {family(module) for module, _ in imports(parse(path))}
        edges |= {(source, target) for target in targets if source and target and source != target}
    assert not edges


@each_module
def test_libraries_stay_where_they_belong(path):
    used = {module.split(".")[0] for module, _ in imports(parse(path))}
    misplaced = {name for name in used & HOMES.keys() if room(path) not in HOMES[name]}
    assert not misplaced


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


def test_own_imports_finds_the_rooms():
    source = """
import riskmin
from riskmin import __version__, problem
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from riskmin.cli import main
def f():
    from riskmin.driver.loop import minimize
    return riskmin.__version__, riskmin.LinearClassifier, riskmin.solvers.Bundle
"""
    assert sorted(own_imports(ast.parse(source))) == ["driver", "estimators", "problem", "solvers"]


# ---------------------------------------------------------------- size
@each_module
def test_modules_are_short(path):
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= MAX_LINES


def test_packages_are_small():
    """At most 12 files per package, and at most two files with the same prefix."""
    for folder in {path.parent for path in MODULES}:
        names = [path.stem for path in folder.glob("*.py")]
        prefixes = Counter(name.lstrip("_").split("_")[0] for name in names if name != "__init__")
        assert len(names) <= MAX_FILES, folder
        assert not [prefix for prefix, count in prefixes.items() if count > 2], folder


def test_class_names_are_unique():
    """No two classes share a name, private classes included."""
    classes = [
        node.name.lstrip("_")
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert not [name for name, count in Counter(classes).items() if count > 1]


@each_module
def test_functions_are_short(path):
    """Docstrings are not counted."""
    for node in ast.walk(parse(path)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = node.end_lineno - body[0].lineno + 1 if body else 0
            assert length <= MAX_FUNCTION_LINES, f"{node.name} has {length} lines"


def test_numeric_module_constants_are_few():
    """A number belongs to what uses it: a field, a class attribute, `LIMITS`, or a line with its reason."""
    lines, constants = 0, []
    for path in ROOT.rglob("*.py"):
        lines += len(path.read_text(encoding="utf-8").splitlines())
        for node in parse(path).body:
            if isinstance(node, ast.Assign) and re.fullmatch(r"[\d\s.e*/+\-_(),]+", ast.unparse(node.value)):
                constants += [n.id for n in ast.walk(node.targets[0]) if isinstance(n, ast.Name)]
    assert 1000 * sum(name.strip("_").isupper() for name in constants) <= 2 * lines


@each_module
def test_no_open_tasks_are_marked(path):
    text = path.read_text(encoding="utf-8")
    assert not [mark for mark in ("TO" + "DO", "FIX" + "ME", "X" * 3 + ":") if mark in text]


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


# Paraphrases of terms of the field: Hessian, evaluation, remote, nonsmooth, memory, message, coordination.
PARAPHRASES = re.compile(
    r"\b(bends?|bent|looks?|elsewhere|kinks?|crowd(s|ed)?|letters?|company|slips?|soft(ened)?|said|told|says)\b",
    re.I,
)


@each_module
def test_words_are_those_of_the_field(path):
    if path.name != "former_names.py":  # it translates the words of files that were saved before
        found = PARAPHRASES.search(path.read_text(encoding="utf-8"))
        assert not found, f"{found[0]!r}: docs/glossary.md has the term"


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
