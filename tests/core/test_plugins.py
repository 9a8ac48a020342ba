"""Plug-ins: losses, regularizers and solvers of other packages, by name and in model files."""

import os
import subprocess
import sys

import numpy as np
import pytest

import riskmin as rm
from helpers import edit, problem

PACKAGE = """
from dataclasses import dataclass

import numpy as np

from riskmin import L2, Bundle


@dataclass(frozen=True)
class Lopsided:
    level: float = 0.5

    separable = True
    smooth = True
    task = "regression"

    def check_labels(self, y):
        pass

    def value_grad(self, z, y, c):
        r = z - y
        g = c * r * np.abs(self.level - (r > 0))
        return 0.5 * (g @ r), g

    def values(self, z, y):
        r = z - y
        return 0.5 * r * r * np.abs(self.level - (r > 0))


@dataclass(frozen=True)
class Ridge(L2):
    pass


@dataclass(frozen=True)
class Cuts(Bundle):
    pass


def function():
    raise AssertionError("a file must not call it")
"""

ENTRY_POINTS = """
[riskmin.losses]
lopsided = plugin_package.losses:Lopsided
high_lopsided = plugin_package.losses:high
broken = plugin_package.broken:Loss

[riskmin.regularizers]
ridge = plugin_package.losses:Ridge

[riskmin.solvers]
cuts = plugin_package.losses:Cuts
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An installed package with entry points, which no test has imported yet."""
    folder = tmp_path / "site"
    (folder / "plugin_package").mkdir(parents=True)
    (folder / "plugin_package" / "__init__.py").write_text("")
    (folder / "plugin_package" / "losses.py").write_text(PACKAGE + "\n\nhigh = Lopsided(level=0.9)\n")
    (folder / "plugin_package" / "broken.py").write_text("1 / 0\n")
    info = folder / "plugin_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plugin_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(folder))
    tables = [dict(table) for table in (rm.LOSSES, rm.REGULARIZERS, rm.SOLVERS)]
    yield folder
    for table, before in zip((rm.LOSSES, rm.REGULARIZERS, rm.SOLVERS), tables, strict=True):
        table.clear()
        table.update(before)
    forget()


def forget():
    """Forget the modules of the package, as a new process would."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "plugin_package"]:
        del sys.modules[name]


def is_imported():
    return "plugin_package.losses" in sys.modules


def data():
    return problem(rm.Squared(), 50, 3)[:2]


# ---------------------------------------------------------------- names
def test_registered_names(package):
    from plugin_package.losses import Cuts, Lopsided, Ridge

    rm.register_loss("own", Lopsided(level=0.8))
    rm.register_regularizer("own", Ridge)
    rm.register_solver("own", Cuts)
    assert rm.get_loss("own").level == 0.8
    assert rm.get_loss("own:level=0.3").level == 0.3
    model = rm.LinearRegressor("own", regularizer="own", solver="own", alpha=0.1).fit(*data())
    assert model.result_.status == "converged"
    assert model.result_.solver.startswith("Cuts")
    rm.register_loss("own", Lopsided(level=0.7))  # again, under its name
    assert rm.get_loss("own").level == 0.7


@pytest.mark.parametrize(
    ("name", "loss", "message"),
    [
        ("hinge", rm.Hinge(margin=2.0), "'hinge' is a loss of riskmin: give yours another name"),
        ("a:b", rm.Hinge(), "'a:b' is no name: give a Python identifier"),
        (3, rm.Hinge(), "3 is no name"),
        ("mine", object(), "'mine' is no loss: it has no method value_grad"),
    ],
)
def test_names_that_cannot_be_registered(name, loss, message):
    with pytest.raises(ValueError, match=message):
        rm.register_loss(name, loss)
    assert name == "hinge" or name not in rm.LOSSES


def test_entry_points_are_imported_by_name(package):
    assert not is_imported()
    assert "lopsided" not in rm.LOSSES
    assert rm.get_loss("lopsided:level=0.25").level == 0.25
    assert is_imported()
    assert rm.get_loss("high_lopsided").level == 0.9  # an object instead of a class
    assert type(rm.get_regularizer("ridge")).__name__ == "Ridge"
    assert type(rm.get_solver("cuts")).__name__ == "Cuts"
    with pytest.raises(ValueError, match=r"the names are hinge, .*, broken"):
        rm.get_loss("unknown")
    with pytest.raises(ValueError, match=r"the loss broken cannot be imported \(ZeroDivisionError: division"):
        rm.get_loss("broken")


def test_classes_by_path(package):
    assert rm.get_loss("plugin_package.losses:Lopsided,level=0.9").level == 0.9
    assert rm.get_loss("plugin_package.losses:Lopsided").level == 0.5
    for text, message in (
        ("plugin_package.losses:Lopsided,slope=1", "Lopsided has no parameter slope; it has level"),
        ("plugin_package.losses:Nothing", "cannot be imported .AttributeError"),
        ("plugin_package.none:Nothing", "cannot be imported .ModuleNotFoundError"),
        ("plugin_package.losses:function", "is no loss: it is no class with a method value_grad"),
        (":Class", "cannot be imported .ValueError"),
    ):
        with pytest.raises(ValueError, match=message):
            rm.get_loss(text)


# ---------------------------------------------------------------- model files
@pytest.mark.parametrize("given", ["lopsided:level=0.9", "plugin_package.losses:Lopsided,level=0.9", None])
def test_a_model_imports_code_only_if_asked(package, tmp_path, given):
    X, y = data()
    loss = rm.get_loss("plugin_package.losses:Lopsided,level=0.9") if given is None else given
    path, model = tmp_path / "model", rm.LinearRegressor(loss, alpha=0.1).fit(X, y)
    rm.save_model(model, path)
    rm.LOSSES.pop("lopsided", None)
    forget()
    with pytest.raises(rm.FileError) as caught:
        rm.load_model(path)
    assert not is_imported()
    assert str(caught.value) == (
        f"{path} was not loaded: the loss plugin_package.losses:Lopsided is not one of riskmin, and a file "
        "imports no code by itself: if you trust it, load_model(path, trust=['plugin_package.losses']), or "
        "--trust plugin_package.losses in the command"
    )
    with pytest.raises(rm.FileError, match="was not loaded"):
        rm.load_model(path, trust=["plugin_package.loss", "plugin"])  # other modules
    assert not is_imported()
    for trust in (["plugin_package.losses"], "plugin_package"):
        again = rm.load_model(path, trust=trust)
        assert np.array_equal(again.predict(X), model.predict(X))
        assert rm.get_loss(again.loss).level == 0.9
        assert again.fit(X, y).objective_ == model.objective_
        assert given is None or again.loss == given


def test_registered_losses_are_trusted(package, tmp_path):
    from plugin_package.losses import Lopsided, Ridge

    X, y = data()
    rm.save_model(
        rm.LinearRegressor(rm.Nu(Lopsided(0.9), 0.5), regularizer="ridge").fit(X, y), tmp_path / "model"
    )
    rm.REGULARIZERS.pop("ridge")
    with pytest.raises(rm.FileError, match=r"the loss plugin_package.losses:Lopsided is not one of riskmin"):
        rm.load_model(tmp_path / "model")
    rm.register_loss("own", Lopsided)
    with pytest.raises(
        rm.FileError, match=r"the regularizer plugin_package.losses:Ridge is not one of riskmin"
    ):
        rm.load_model(tmp_path / "model")
    rm.register_regularizer("own", Ridge)
    assert rm.load_model(tmp_path / "model").loss.loss.level == 0.9


def test_own_solvers_are_not_written(package, tmp_path):
    X, y = data()
    rm.save_model(rm.LinearRegressor(solver="cuts").fit(X, y), tmp_path / "model")
    assert rm.load_model(tmp_path / "model").solver is None
    rm.save_model(rm.LinearRegressor(solver="lbfgs").fit(X, y), tmp_path / "model")
    assert rm.load_model(tmp_path / "model").solver == "lbfgs"


OWN = "plugin_package.losses"
CHANGED = [
    ({"name": f"{OWN}:function"}, "was not loaded"),
    ({"name": "os:system", "params": {"command": "true"}}, "was not loaded"),
    ({"name": "Lopsided"}, "Lopsided is not a loss of riskmin"),
    ({"name": f"{OWN}:Lopsided", "params": {"level": "x" * 3}}, "was not loaded"),
    ({"given": f"{OWN}:Lopsided"}, None),  # how the user has spelled it
    ({"given": "lopsided"}, None),
]


@pytest.mark.parametrize(("change", "message"), CHANGED)
def test_changed_files_import_nothing(package, tmp_path, change, message):
    path = tmp_path / "model"
    rm.save_model(rm.LinearRegressor("huber").fit(*data()), path)
    edit(path, lambda arrays, meta: meta["params"]["loss"].update(change))
    if message is None:
        assert rm.load_model(path).loss == rm.Huber()
    else:
        with pytest.raises(rm.FileError, match=message):
            rm.load_model(path)
    assert not is_imported()


# ---------------------------------------------------------------- the command
def run(folder, *args):
    code = "import sys; from riskmin.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, args)],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "loss",
    ["local_losses:Lopsided,level=0.9", pytest.param("lopsided:level=0.9", marks=pytest.mark.exhaustive)],
)
def test_the_command(package, tmp_path, loss):
    X, y = data()
    table = tmp_path / "table.csv"
    rows = [",".join(map(repr, row)) for row in np.column_stack([X, y]).tolist()]
    table.write_text("\n".join(["a,b,c,y", *rows]) + "\n")
    (tmp_path / "local_losses.py").write_text(PACKAGE)  # not installed, but in the working folder
    module = "local_losses" if loss.startswith("local") else "plugin_package"
    done = run(tmp_path, "fit", table, "--target", "y", "--loss", loss, "--lam", "0.1", "-o", "model", "-q")
    assert (done.returncode, done.stderr) == (0, ""), done
    refused = run(tmp_path, "predict", "model", table, "--target", "y")
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert refused.stderr.startswith(f"riskmin: model was not loaded: the loss {module}")
    assert refused.stderr.count("\n") == 1
    done = run(tmp_path, "predict", "model", table, "--target", "y", "--trust", module)
    assert (done.returncode, done.stdout.count("\n")) == (0, 50), done
    check = "certify" if module == "local_losses" else "evaluate"
    done = run(tmp_path, check, "model", table, "--target", "y", "--trust", module)
    assert done.returncode == 0, done
