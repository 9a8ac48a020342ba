# /// script
# requires-python = ">=3.11"
# dependencies = ["riskmin", "mlflow-skinny>=3.1", "pandas>=2.2"]
# ///
"""A model as an MLflow pyfunc: run this script. Needs `pip install mlflow-skinny`.

The artifact is riskmin's own model file: it holds the certificate, which `riskmin certify` checks against the
training data. MLflow stores this script beside it and runs it to load the model, so nothing is pickled.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
from mlflow.models import ModelSignature, infer_signature
from mlflow.types import ParamSchema, ParamSpec
from sklearn.datasets import load_breast_cancer

import riskmin


class CertifiedModel(mlflow.pyfunc.PythonModel):
    """Loads a file of `riskmin.save_model`, and predicts; also probabilities, if they are asked for."""

    def load_context(self, context):  # type: ignore[no-untyped-def]
        """Read the model; a changed file is refused by its checksum."""
        self.model = riskmin.load_model(context.artifacts["model"])

    # without annotations, which MLflow would take for the schema of the input
    def predict(self, context, model_input, params=None):  # type: ignore[no-untyped-def]
        """Return the predictions of rows, and their probabilities if ``params={"proba": True}``."""
        table = pd.DataFrame({"prediction": self.model.predict(model_input)})
        if params and params.get("proba"):
            names = [f"probability {label}" for label in self.model.classes_]
            table[names] = self.model.predict_proba(model_input)
        return table


def save(model: Any, folder: str | Path, example: pd.DataFrame) -> None:
    """Write a fitted model as an MLflow model, with its certificate among the metadata."""
    params = ParamSchema([ParamSpec("proba", "boolean", False)])
    signature = ModelSignature(infer_signature(example).inputs, None, params)
    with tempfile.TemporaryDirectory() as artifacts:
        file = Path(artifacts, "model.riskmin")
        riskmin.save_model(model, file)
        mlflow.pyfunc.save_model(
            path=str(folder),
            python_model=__file__,
            artifacts={"model": str(file)},
            signature=signature,
            pip_requirements=[f"riskmin=={riskmin.__version__}", "pandas"],
            metadata={"objective": model.objective_, "lower_bound": model.lower_bound_, "gap": model.gap_},
        )


def main() -> None:
    X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    model = riskmin.LinearClassifier("logistic", alpha=1e-3, standardize=True).fit(X, y)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "model")
        save(model, folder, X[:5])
        loaded = mlflow.pyfunc.load_model(str(folder))
        print(loaded.predict(X[:3], params={"proba": True}).round(3))
        print("gap of the certificate:", f"{loaded.metadata.metadata['gap']:.1e}")
        artifact = riskmin.load_model(next(folder.rglob("model.riskmin")))
        print(riskmin.certify(artifact, X, y).reason)


mlflow.models.set_model(CertifiedModel())

if __name__ == "__main__":
    main()
