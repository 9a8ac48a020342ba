"""The objective of a model and its data, for commands that do not call `fit`."""

from __future__ import annotations

from typing import Any, NamedTuple

from riskmin.cli.tasks.base import TASK_BEHAVIORS, query_kwargs
from riskmin.data.raw_tables.preparation import PreparedRows


class FittedProblem(NamedTuple):
    """The problem that a fit of a model to data minimizes."""

    objective: Any
    rows: Any
    """The labels as the loss takes them (`EncodedLabels`)."""


def build_problem(model: Any, table: PreparedRows, executor: Any) -> FittedProblem:
    """Return the problem of the data with the model's parameters, whose labels the model then knows."""
    from riskmin.estimators._common.fit import (
        build_objective,
        build_risk,
        normalize_weights,
        resolve_regularizer,
    )
    from riskmin.estimators._common.standardize import column_scaling

    n, task = table.X.shape[0], TASK_BEHAVIORS[model.task]
    task.check(model, table.y, table.qid)
    given_weight = normalize_weights(table.weight, n)
    rows = model._encode(table.y, given_weight)._replace(offset=table.offset)
    # as after a fit: the loss depends on the labels
    model._labels, model.classes_ = rows.known, rows.known.values
    risk = build_risk(model, table.X, rows, executor=executor, **query_kwargs(model, table.qid))
    objective = build_objective(
        model, risk, resolve_regularizer(model, risk), column_scaling(model, risk, rows.weight, given_weight)
    )
    return FittedProblem(objective, rows)
