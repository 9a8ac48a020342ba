"""examples/mlflow: a pyfunc predicts in another process as its model does, and is refused if changed."""

import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris

import riskmin as rm

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # MLflow warns about its own defaults
SCRIPT = Path(__file__).parents[2] / "examples" / "mlflow" / "certified_model.py"
LOAD = """
import sys, pandas as pd, mlflow
loaded = mlflow.pyfunc.load_model(sys.argv[1])
loaded.predict(pd.read_parquet(sys.argv[2]), params={"proba": True}).to_csv(sys.argv[3], index=False)
"""


def test_a_pyfunc_predicts_as_the_model_and_holds_its_certificate(tmp_path):
    mlflow = pytest.importorskip("mlflow", reason="MLflow is not installed: pip install mlflow-skinny")
    X, y = load_iris(return_X_y=True, as_frame=True)
    model = rm.LinearClassifier("logistic", alpha=1e-3, standardize=True).fit(X, y)
    runpy.run_path(str(SCRIPT))["save"](model, tmp_path / "m", X[:5])
    assert not list((tmp_path / "m").rglob("*.pkl"))
    X.to_parquet(tmp_path / "x.parquet")
    command = [sys.executable, "-c", LOAD, tmp_path / "m", tmp_path / "x.parquet", tmp_path / "out.csv"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    out = np.genfromtxt(tmp_path / "out.csv", delimiter=",", skip_header=1)
    np.testing.assert_array_equal(out[:, 0], model.predict(X))
    np.testing.assert_allclose(out[:, 1:], model.predict_proba(X), rtol=1e-12)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "m"))
    assert loaded.metadata.metadata["gap"] == model.gap_
    with pytest.raises(mlflow.MlflowException, match="petal"):
        loaded.predict(X.drop(columns="petal length (cm)"))
    file = next((tmp_path / "m").rglob("model.riskmin"))
    assert rm.certify(rm.load_model(file), X, y)
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    with pytest.raises(rm.core.persist.FileError, match="damaged"):
        mlflow.pyfunc.load_model(str(tmp_path / "m"))
