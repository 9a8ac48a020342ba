"""Fitted linear models as ONNX graphs, with the preparation of their tables: `to_onnx`.

All numbers are in double precision, so that predictions are those of riskmin. A score is the sum of a product
of the numeric columns with their weights, and of one weight per category, found by its level.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

import riskmin
from riskmin.core import NDArray
from riskmin.core.atomic_files import atomic_write
from riskmin.core.messages import MissingExtra, extra_hint
from riskmin.data.raw_tables.columns import MISSING, level_of, spellings
from riskmin.data.raw_tables.encoders import CategoryEncoder, DateEncoder
from riskmin.data.raw_tables.preparation import TablePreparation
from riskmin.estimators.classifier import LinearClassifier
from riskmin.estimators.gpu_rows import dense_weights, on_host
from riskmin.estimators.ranker import LinearRanker
from riskmin.estimators.regressor import LinearRegressor, has_log_link
from riskmin.estimators.scikit_learn import check_is_fitted

OPSETS = {"": 17, "ai.onnx.ml": 2}
"""Versions of the operators: the first that have all of them, which old runtimes know, too."""
IR_VERSION = 8
"""The file layout that belongs to the operators of version 17."""


def to_onnx(model: Any, path: str | os.PathLike[str] | None = None) -> Any:
    """Return a fitted linear model as an ONNX model, which predicts without riskmin and Python.

    The inputs are ``X``, of shape (n, p) in double precision; or, of a model that the command fitted to a raw
    table, one input of shape (n, 1) per column, with its name: double precision, NaN for missing cells, or
    text, in which a whole number is written as 2020 or 2020.0. The outputs are ``label``, ``scores`` and, for
    logistic losses, ``probabilities`` of classifiers; ``prediction`` of regressions; ``scores`` of rankings.
    Nothing is refused there: a level unseen in training counts as in `predict`, and so does a missing level
    that training did not have; a missing number without ``--impute`` gives NaN. The metadata holds the loss
    and the certificate.

    Parameters
    ----------
    model : LinearClassifier, LinearRegressor or LinearRanker
        A fitted estimator, or a search for its alpha.
    path : path, optional
        A file to write.

    Returns
    -------
    onnx.ModelProto

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from riskmin import LinearClassifier, to_onnx
    >>> model = LinearClassifier("logistic").fit(*load_iris(return_X_y=True))
    >>> [output.name for output in to_onnx(model).graph.output]
    ['label', 'scores', 'probabilities']
    """
    if not isinstance(model, LinearClassifier | LinearRegressor | LinearRanker):
        raise ValueError(
            f"{type(model).__name__} has no ONNX form; LinearClassifier, LinearRegressor and LinearRanker do"
        )
    check_is_fitted(model)
    made = _Graph().of_model(model)
    if path is not None:
        with atomic_write(Path(path)) as file:
            file.write(made.SerializeToString())
    return made


def _onnx() -> Any:
    try:
        import onnx
    except ImportError as error:
        raise MissingExtra(f"ONNX files need the package onnx ({error}): {extra_hint('onnx')}") from None
    return onnx


class _Graph:
    """A graph under construction: its nodes and constants."""

    def __init__(self) -> None:
        self.onnx = _onnx()
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    # ------------------------------------------------------------ parts
    def add(self, operator: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Append an operator, and return the name of its result."""
        # columns of tables cannot have such names, by the slash and the number after it
        name = f"riskmin/{len(self.nodes)}"
        make = self.onnx.helper.make_node
        self.nodes.append(make(operator, list(inputs), [name], domain=domain, **attributes))
        return name

    def constant(self, values: Any) -> str:
        """Append an array, and return its name."""
        name = f"riskmin/constant/{len(self.constants)}"
        array = np.asarray(values)
        # texts are stored as objects
        array = array.astype(object) if array.dtype.kind == "U" else array
        self.constants.append(self.onnx.numpy_helper.from_array(array, name))
        return name

    def input(self, name: str, width: int, *, text: bool = False) -> str:
        """Append an input of the graph."""
        kinds = self.onnx.TensorProto
        kind = kinds.STRING if text else kinds.DOUBLE
        self.inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["n", width]))
        return name

    def output(self, name: str, source: str, kind: Any, shape: list[Any]) -> None:
        """Append an output of the graph; its name is not that of an input."""
        while name in {one.name for one in self.inputs}:
            name += "_"
        self.nodes.append(self.onnx.helper.make_node("Identity", [source], [name]))
        self.outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))

    # ------------------------------------------------------------ models
    def of_model(self, model: Any) -> Any:
        """Return the ONNX model of a fitted estimator."""
        W: NDArray = np.atleast_2d(dense_weights(model)).T  # one column per output
        b = np.ravel(on_host(model.intercept_)) + np.zeros(W.shape[1])
        if model.preparation_ is None:
            products = [self.add("MatMul", self.input("X", len(W)), self.constant(W))]
        else:
            products = self._of_table(model.preparation_, W)
        z = self.constant(b)
        for product in products:
            z = self.add("Add", product, z)
        kind, shape = self.onnx.TensorProto.DOUBLE, ["n", W.shape[1]]
        if model.task == "classification":
            self._of_classes(model, z)
        elif model.task == "regression":
            self.output("prediction", self.add("Exp", z) if has_log_link(model.loss) else z, kind, shape)
        else:
            self.output("scores", z, kind, shape)
        return self._finished(model)

    def _of_table(self, table: TablePreparation, W: NDArray) -> list[str]:
        """Return the contributions of the columns of a raw table to the scores."""
        ends = np.cumsum([len(encoder.feature_names) for encoder in table.encoders]).tolist()
        numbers, weights, products = [], [], []
        for encoder, end in zip(table.encoders, ends, strict=True):
            block = W[end - len(encoder.feature_names) : end]
            if isinstance(encoder, CategoryEncoder):
                products.append(self._of_category(encoder, block))
                continue
            if isinstance(encoder, DateEncoder):
                raise ValueError(
                    f"the column {encoder.name!r} holds dates, which ONNX does not read: leave it out"
                )
            cell = self.input(encoder.name, 1)
            if encoder.fill is not None:
                cell = self.add("Where", self.add("IsNaN", cell), self.constant(encoder.fill), cell)
            numbers.append(cell)
            weights.append(block)
        if numbers:
            X = self.add("Concat", *numbers, axis=1)
            products.append(self.add("MatMul", X, self.constant(np.concatenate(weights))))
        return products

    def _of_category(self, encoder: CategoryEncoder, block: NDArray) -> str:
        """Return the weights of the levels of a column, one row of `block` per indicator."""
        n = len(encoder.levels)
        # LabelEncoder compares texts, so each spelling is a key
        levels = {word: k for k, level in enumerate(encoder.levels) for word in spellings(level_of(level))}
        levels |= {word: n for level in encoder.rare for word in spellings(level_of(level))}
        if encoder.missing:
            levels |= dict.fromkeys(sorted(MISSING), n + bool(encoder.rare))
        # levels unseen in training are rare ones; without such, all of their indicators are zero
        unseen = n if encoder.rare else len(block)
        index = self.add(
            "LabelEncoder",
            self.add("Squeeze", self.input(encoder.name, 1, text=True), self.constant(np.array([1]))),
            domain="ai.onnx.ml",
            keys_strings=list(levels),
            values_int64s=list(levels.values()),
            default_int64=unseen,
        )
        rows = np.concatenate([block, np.zeros((1, block.shape[1]))])
        return self.add("Gather", self.constant(rows), index, axis=0)

    def _of_classes(self, model: Any, z: str) -> None:
        """Append the outputs of a classifier."""
        kinds, k = self.onnx.TensorProto, len(model.classes_)
        if k == 2:
            flat = self.add("Squeeze", z, self.constant(np.array([1])))
            best = self.add("Cast", self.add("Greater", flat, self.constant(0.0)), to=kinds.INT64)
        else:
            best = self.add("ArgMax", z, axis=1, keepdims=0)
        classes = _classes(model.classes_)
        label = self.add("Gather", self.constant(classes), best, axis=0)
        self.output("label", label, self.constants[-1].data_type, ["n"])
        self.output("scores", z, kinds.DOUBLE, ["n", 1 if k == 2 else k])
        if hasattr(model, "predict_proba"):
            if k == 2:
                both = self.add("Concat", self.add("Neg", z), z, axis=1)
                p = self.add("Sigmoid", both)
            else:
                p = self.add("Softmax", z, axis=1)
            self.output("probabilities", p, kinds.DOUBLE, ["n", k])

    def _finished(self, model: Any) -> Any:
        helper = self.onnx.helper
        graph = helper.make_graph(
            self.nodes, type(model).__name__, self.inputs, self.outputs, initializer=self.constants
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        made = helper.make_model(
            graph,
            producer_name="riskmin",
            producer_version=riskmin.__version__,
            ir_version=IR_VERSION,
            opset_imports=opsets,
        )
        certificate = {
            "loss": str(model.loss),
            "regularizer": str(model.regularizer),
            "alpha": repr(float(model.alpha)),
            "objective": repr(float(model.objective_)),
            "lower_bound": repr(float(model.lower_bound_)),
            "status": model.result_.status,
            "rows": str(model.n_samples_fit_),
        }
        helper.set_model_props(made, certificate)
        self.onnx.checker.check_model(made)
        return made


def _classes(classes: NDArray) -> NDArray:
    """Return class labels as an array that ONNX can hold: integers, floats, booleans or texts."""
    if classes.dtype.kind in "iu":
        return classes.astype(np.int64)
    if classes.dtype.kind in "fb":
        return classes.astype(np.float64 if classes.dtype.kind == "f" else np.bool_)
    if all(isinstance(label, str) for label in classes.tolist()):
        return classes.astype(np.str_)
    kinds = ", ".join(sorted({type(label).__name__ for label in classes.tolist()}))
    raise ValueError(f"the classes are of type {kinds}, which ONNX has not: fit to numbers or texts")
