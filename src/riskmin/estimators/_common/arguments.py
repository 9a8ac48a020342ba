"""Errors about the arguments of estimators: what to give in place of an unknown one, and columns by name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Any

from riskmin.arrays.finite import NotFiniteError
from riskmin.arrays.namespace import column_names
from riskmin.core.messages import unknown_name

_KERNELS = "give it to KernelClassifier or KernelRegressor: the model is linear in the columns"
_PARAMETERS_ELSEWHERE = {
    "C": "give alpha = 1 / (C n) for n rows",
    "lam": "give alpha",
    "lambda_": "give alpha",
    "reg_lambda": "give alpha",
    "c1": "give alpha with regularizer='l1', or 'elastic'",
    "c2": "give alpha, for alpha |w|^2 / 2 and a mean over n sequences: alpha = 2 c2 / n",
    "penalty": "give regularizer",
    "l1_ratio": "give regularizer='elastic:eps=...', or LinearRegressorCV(l1_ratio=...)",
    "epsilon": "give loss='epsilon_insensitive:epsilon=...'",
    "quantile": "give loss='quantile:level=...'",
    "nu": "give loss=riskmin.Nu(...)",
    "random_state": "leave it out: fits are deterministic",
    "dual": "leave it out: the solver is chosen by the problem",
    "max_iterations": "give max_iter",
    **dict.fromkeys(("kernel", "gamma", "degree", "coef0"), _KERNELS),
}
"""What to give in place of parameters of scikit-learn, LIBLINEAR, LightGBM and CRFsuite."""

_END = (
    "a fit ends at a proved gap, not by other rows: choose alpha by LinearClassifierCV or LinearRegressorCV"
)
_ARGUMENTS_ELSEWHERE = {
    "group": "give LinearRanker.fit the query of each row: qid=np.repeat(np.arange(len(group)), group)",
    **dict.fromkeys(("eval_set", "eval_metric", "early_stopping_rounds"), f"{_END}, or give callback"),
    **dict.fromkeys(("weight", "weights"), "give sample_weight"),
}
"""What to give in place of arguments of `fit` of XGBoost and LightGBM."""


def _check_keywords(
    owner: str, given: Collection[str], names: Collection[str], elsewhere: Mapping[str, str]
) -> None:
    """Raise a TypeError that names what to give instead if a keyword is none of the names."""
    for name in given:
        if name not in names:
            problem = f"{owner} has no parameter {name!r}"
            hint = elsewhere.get(name)
            known = sorted(set(names) - {"self"})
            raise TypeError(f"{problem}: {hint}" if hint else unknown_name(problem, name, known))


def with_checked_parameters(kind: type, init: Any) -> Any:
    """Return the constructor; its error for an unknown keyword names what to give instead."""
    names = inspect.signature(init).parameters.keys()

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **keywords: Any) -> None:
        _check_keywords(kind.__name__, keywords, names, _PARAMETERS_ELSEWHERE)
        init(self, *args, **keywords)

    return checked


def with_named_columns(kind: type, method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of rows whose errors name what to give for an unknown keyword, and columns of NaN."""
    names = inspect.signature(method).parameters.keys()

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        if not keywords.keys() <= names:
            settings = dict.fromkeys(self.get_params(deep=False), "it is one of the constructor")
            owner = f"{kind.__name__}.{method.__name__}"
            _check_keywords(owner, keywords, names, settings | _ARGUMENTS_ELSEWHERE)
        try:
            return method(self, *args, **keywords)
        except NotFiniteError as error:
            X = args[0] if args else keywords["X"]
            name = next(islice(column_names(X), error.column, None), error.column)
            raise NotFiniteError(error.row, error.column, name) from None

    return checked
