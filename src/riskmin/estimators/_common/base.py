r"""Base classes of the estimators: what they share is declared and documented once.

An estimator is a dataclass of its parameters, which satisfies scikit-learn's rules: the constructor stores
its arguments unchanged, and `get_params`, `clone` and `repr` read its signature.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar, dataclass_transform

import numpy as np

from riskmin.arrays.namespace import as_array_like, is_foreign
from riskmin.core import NDArray
from riskmin.estimators._common.advice import ConvergenceHints
from riskmin.estimators._common.arguments import with_checked_parameters, with_named_columns
from riskmin.estimators._common.decision import Decision
from riskmin.estimators._common.fit import check_number, fitted_regularizer, normalize_weights, resolve_loss
from riskmin.estimators._common.input import (
    EncodedLabels,
    affine_scores,
    linear_scores,
    select_rows,
    validate_rows,
)
from riskmin.estimators._common.labels import Labels
from riskmin.estimators._common.offset import at_offset, row_offset
from riskmin.estimators._common.outputs import fit_outputs
from riskmin.estimators.gpu_rows import beside, dense_weights, is_gpu_rows, on_host
from riskmin.estimators.persistence.records import check_length, read_numbers
from riskmin.estimators.scikit_learn import (
    BaseEstimator,
    CallbackSupportMixin,
    FitTasks,
    check_is_fitted,
    with_fit_tasks,
)
from riskmin.problem.linear_risk import check_labels
from riskmin.regularizers import unpenalized_tail
from riskmin.report.page import certificate_html

Kind = TypeVar("Kind")

# fmt: off
_ORDER = (
    "loss", "hierarchy", "separator", "cost", "kernel", "gamma", "degree", "coef0", "alphas", "n_alphas",
    "alpha_range", "eps", "cv", "scoring", "alpha", "metric", "order", "regularizer", "positive",
    "standardize", "contamination", "fit_intercept", "class_weight", "solver", "tol", "atol", "cache_size",
    "max_iter", "max_seconds", "warm_start", "device", "n_jobs", "callback", "checkpoint", "verbose",
)
# fmt: on
"""Order of the keywords in signatures, from the problem to the run; other keywords follow."""


_METHODS_OF_ROWS = {"fit", "fit_transform", "transform", "predict", "decision_function", "score_samples"}


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(field,))
def estimator(kind: type[Kind]) -> type[Kind]:
    """Make the annotated attributes of a class its parameters, and document the inherited ones.

    Examples
    --------
    >>> @estimator
    ... class Centered(CertifiedEstimator):
    ...     loss: Any = field(default="hinge", kw_only=False)
    ...     shift: float = 0.0
    >>> Centered("logistic", shift=2.0, tol=1e-4)
    Centered(loss='logistic', shift=2.0, tol=0.0001)
    """
    made = dataclass(kw_only=True, eq=False, repr=False, match_args=False)(kind)
    for name in _METHODS_OF_ROWS & vars(made).keys():
        method = with_named_columns(made, vars(made)[name])
        setattr(made, name, with_fit_tasks(method) if name.startswith("fit") else method)
    init: Any = made.__init__
    signature = inspect.signature(init)
    given = [p for p in signature.parameters.values() if p.kind is not p.KEYWORD_ONLY]
    keywords = [p for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY]
    if BaseEstimator not in made.__bases__:  # some keywords are inherited
        keywords.sort(key=lambda p: _ORDER.index(p.name) if p.name in _ORDER else len(_ORDER))
    init = with_checked_parameters(made, init)
    init.__signature__ = signature.replace(parameters=[*given, *keywords])
    made.__init__ = init  # type: ignore[method-assign]
    if made.__doc__ is not None:  # python -OO removes docstrings
        made.__doc__ = _with_inherited_docs(made, [p.name for p in (*given[1:], *keywords)])
    return made


def _with_inherited_docs(kind: type, parameters: list[str]) -> str:
    """Return the docstring with the entries of inherited parameters and attributes from the base classes."""
    text = inspect.cleandoc(kind.__doc__ or "")
    bases = [base for base in kind.__mro__[1:] if issubclass(base, BaseEstimator) and base.__doc__]
    for title in ("Parameters", "Attributes"):
        own = _entries(text, title)
        if own is None:
            continue
        entries = dict(own)
        for base in bases:
            entries = (_entries(inspect.cleandoc(base.__doc__ or ""), title) or {}) | entries
        # own entries first; parameters in the order of the signature
        names = [*own, *(name for name in entries if name not in own)]
        if title == "Parameters":
            names = [name for name in parameters if name in entries]
        body = "\n".join(dict.fromkeys(entries[name] for name in names))
        text = re.sub(rf"({title}\n-+\n).*?(?=\n\n|$)", lambda m: m[1] + body, text, count=1, flags=re.S)  # noqa: B023
    return text


def _entries(text: str, title: str) -> dict[str, str] | None:
    """Return the entries of a numpydoc section by the names that they describe; None without the section."""
    section = re.search(rf"^{title}\n-+\n(.*?)(?=\n\n|$(?!\n))", text, flags=re.S | re.M)
    if section is None:
        return None
    blocks = re.split(r"\n(?=\S)", section[1])
    return {name: block for block in blocks for name in block.partition(" :")[0].split("\n")[0].split(", ")}


class RiskArguments(NamedTuple):
    r"""The arguments of a loss for all rows: :math:`R = \sum_i c_i\, l(z_i, y_i)`."""

    scores: NDArray
    labels: NDArray
    weights: NDArray
    """The row weights, which sum to one."""


@estimator
class CertifiedEstimator(CallbackSupportMixin, BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    r"""An estimator that minimizes J and stores the certificate.

    Parameters
    ----------
    alpha : float
        Regularization strength.
    solver : None, str or solver
        None and "auto" choose by the problem; or a name of `riskmin.SOLVERS` ("bundle", "lbfgs"), or an
        object such as ``riskmin.Bundle(keep=50)``.
    tol : float
        The certified gap to reach, relative to the objective.
    atol : float or None
        The certified gap to reach in absolute terms; None for 1e-6 tol times the risk at w = 0 with its best
        intercept. A fit has converged once either tolerance is met: ``result_.criterion`` is the name of the
        one that was, "tol" or "atol".
    max_iter : int
        The largest number of iterations; reaching a limit issues a ConvergenceWarning.
    max_seconds : float or None
        The time limit, which also interrupts an iteration.
    warm_start : bool
        Whether `fit` starts from the weights of the previous fit.
    callback : callable or None
        ``callback(iterate, row)``, called after every iteration; a true return value stops the fit.
    verbose : bool
        Whether to print the certified gap to stderr during the fit.

    Attributes
    ----------
    objective_ : float
        J at the fitted weights and intercepts. With `standardize`, J and its bound are those of the
        standardized problem.
    lower_bound_ : float
        A proven lower bound on min J.
    gap_ : float
        ``objective_ - lower_bound_``.
    n_iter_ : int
        The number of iterations.
    result_ : `riskmin.Result`
        The status, the trace, and the cut that proves the bound.
    n_samples_fit_ : int
        The number of rows fitted.
    weighted_ : bool
        Whether `sample_weight` was given.
    n_features_in_ : int
        The number of columns of X.
    feature_names_in_ : (p,) array
        The names of the columns, if X has names.
    """

    task: ClassVar[str]
    """The task of the losses that the estimator takes."""
    extra_loss_tasks: ClassVar[tuple[str, ...]] = ()
    """Other tasks whose losses it takes."""
    loss_aliases: ClassVar[dict[str, Any]] = {}
    """Names of losses that have this meaning for the estimator only."""
    multi_output_targets: ClassVar[bool] = False
    """Whether y may have several columns."""
    can_standardize: ClassVar[bool] = False
    """Whether it has the parameter `standardize`."""
    can_be_unpenalized: ClassVar[bool] = False
    """Whether alpha may be 0."""
    can_be_saved: ClassVar[bool] = True
    """Whether `save_model` takes it."""
    repeats_settings: ClassVar[bool] = True
    """Whether settings of a regularizer with one number per feature apply to each output."""
    _label_kind: ClassVar[type[Labels]] = Labels
    """What it learns about labels."""
    _decision: ClassVar[Decision] = Decision()
    """How scores become predictions."""
    intercepts_in_w: ClassVar[bool] = False
    """Whether the intercepts of a multi-output loss are the last entries of w."""

    alpha: float = 1e-4
    solver: Any = None
    tol: float = 1e-3
    atol: float | None = None
    max_iter: int = 10_000
    max_seconds: float | None = None
    warm_start: bool = False
    callback: Any = None
    verbose: bool = False

    # the values of parameters that an estimator does not have
    regularizer = "l2"
    positive = False
    standardize = False
    fit_intercept = False
    class_weight = None
    checkpoint = None
    device: ClassVar[Any] = None

    preparation_ = None
    """How the command prepared a raw table; None for models of rows that were prepared before."""

    command_ = None
    """The command line that fitted the model; None for one that was fitted in Python."""

    target_name_ = None
    """The column of the labels in the table of numbers to which the command fitted the model, if known."""

    _labels = Labels()
    _hints = ConvergenceHints()
    _fit_tasks = FitTasks()

    # ------------------------------------------------------------ the record of a fitted model
    def _encode(self, y: Any, weight: NDArray | None, order: list[Any] | None = None) -> EncodedLabels:
        """Return the labels of training rows as the loss takes them, and what was learned about them."""
        known = self._label_kind.learn(self, y, weight, order)
        loss = known.loss(self)
        labels, weight = known.encode(self, y, loss, weight)
        return EncodedLabels(labels, weight, known, loss)

    def _set_fitted(self, w: NDArray, b: Any, X: Any, rows: EncodedLabels) -> None:
        """Make w and the best intercepts the fitted point, with the best cutoffs for these rows."""
        self._set_record(w, b, lambda: on_host(linear_scores(X, w)) + b, rows)

    def _set_record(self, w: NDArray, b: Any, scores: Callable[[], NDArray], rows: EncodedLabels) -> None:
        """Set the fitted attributes from weights, intercepts and the scores of labeled rows."""
        self._labels = rows.known

        def at() -> RiskArguments:
            z, y, c = scores(), on_host(rows.labels), on_host(rows.weight)
            c = np.full(len(z), 1 / len(z)) if c is None else c
            y, used = np.zeros(len(z)) if y is None else y, slice(None) if c.all() else c > 0
            return RiskArguments(z[used], y[used], c[used])

        self._set_weights(w, np.atleast_1d(b), self._decision.best_cuts(self, at))

    def _fitted_loss(self) -> Any:
        """Return the loss that a fitted model minimized."""
        return self._labels.loss(self)

    def _n_unpenalized(self) -> int:
        """Return how many entries at the end of a fitted w are unpenalized intercepts."""
        return 0

    def _intercepts(self) -> NDArray:
        """Return the fitted intercepts before a threshold is subtracted, without those that w holds."""
        b = np.ravel(on_host(vars(self).get("intercept_", 0.0))) + vars(self).get("threshold_", 0.0)
        return np.asarray(b, dtype=np.float64)

    def _risk_arguments(self, X: Any, y: Any, weight: NDArray | None, **more: Any) -> RiskArguments:
        """Return what the loss of the fitted model takes at its weights: scores, labels and row weights.

        `weight` holds the given weights, which sum to one; `more` are the other arguments of `fit`.
        """
        loss = self._fitted_loss()
        z = at_offset(self._scores(X), more.get("offset"))
        labels: Any
        labels, c = self._labels.encode(self, y, loss, weight)
        if self._labels.values is None:  # numbers, which a loss may refuse; classes are encoded for it
            qid = more.get("qid") if loss.task == "ranking" else None
            labels = check_labels(labels, len(z), loss, qid, z if is_foreign(z) else None)
        c = np.full(len(z), 1 / len(z)) if c is None else c / c.sum()
        return RiskArguments(z, *(as_array_like(a, z) for a in (labels, c)))

    def _penalty(self) -> Any:
        """Return Omega as a function of all of w, intercepts included."""
        return unpenalized_tail(fitted_regularizer(self), self._n_unpenalized())

    # ------------------------------------------------------------ what an estimator defines
    def _check_parameters(self) -> None:
        """Raise unless the numeric parameters are valid."""
        if self.can_be_unpenalized:
            check_number(self, "alpha", "a finite number >= 0", lambda v: 0 <= v < math.inf)
        else:
            check_number(self, "alpha", "a finite number > 0", lambda v: 0 < v < math.inf)
        check_number(self, "tol", "a number >= 0", lambda v: v >= 0)
        if self.atol is not None:
            check_number(self, "atol", "None or a number >= 0", lambda v: v >= 0)
        check_number(self, "max_iter", "an integer >= 1", lambda v: v >= 1 and v % 1 == 0)
        if self.max_seconds is not None:
            check_number(self, "max_seconds", "None or a number > 0", lambda v: v > 0)

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        """Set the fitted attributes that follow from w, the intercepts, `_labels` and the cutoffs."""
        raise NotImplementedError(f"{type(self).__name__} does not define _set_weights(w, b, cuts)")

    def _scores(self, X: Any) -> NDArray:
        """Return the scores of given rows as the loss takes them, before a threshold is subtracted."""
        raise NotImplementedError(f"{type(self).__name__} does not define _scores(X)")

    def _at_rows(self, X: Any) -> tuple[CertifiedEstimator, str]:
        """Return the model with what follows from its training rows recomputed, and what contradicts them."""
        return self, ""

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        """Return what a model file holds in addition to the parameters: arrays, and JSON-compatible data.

        The array "coef" is w.
        """
        return {"coef": np.asarray(self.result_.w)}, {
            "labels": self._labels.to_json(),
            "intercept": self._intercepts().tolist(),
            "cuts": self._decision.cuts(self).tolist(),
        }

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        """Set the fitted attributes from what `_state` returned; raise ValueError if it is not sound."""
        raise NotImplementedError(f"{type(self).__name__} does not define _restore(w, fitted, arrays)")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    # ------------------------------------------------------------ notebooks
    def _certificate_html(self) -> str:
        """Return the certificate as an HTML table; empty before the fit."""
        if "result_" not in vars(self):
            return ""
        return certificate_html(self.result_, self.objective_, self.tol)

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram, and the certificate below it."""
        return str(super()._repr_html_inner()) + self._certificate_html()

    def _repr_mimebundle_(self, **options: Any) -> dict[str, str]:
        """Return what notebooks display, with the certificate in the HTML."""
        bundle: dict[str, str] = super()._repr_mimebundle_(**options)
        if "text/html" in bundle:  # unless scikit-learn is set to display text
            bundle["text/html"] += self._certificate_html()
        return bundle


@estimator
class LinearEstimator(CertifiedEstimator):
    r"""A certified estimator with weights of the columns of X.

    Parameters
    ----------
    regularizer : str or Regularizer
        :math:`\Omega`: a name of `riskmin.REGULARIZERS`, optionally with parameters
        (``"elastic:eps=0.5"``), or an object such as ``L1(weights)``, ``Entropy(balanced=True)`` or
        ``Quadratic(K)``. The default is :math:`\|w\|^2 / 2`. With several classes or outputs, settings with
        one number per feature apply to each of them.
    n_jobs : int or None
        The number of threads for local rows, -1 for one per core. It also limits the threads of NumPy and
        SciPy during the fit. The result does not depend on it, bit for bit.
    checkpoint : path, `riskmin.Checkpoint` or None
        A file to which the run is saved periodically; if it exists, the fit resumes from it.
    """

    regularizer: Any = "l2"
    n_jobs: int | None = None
    checkpoint: Any = None

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.n_jobs is not None:
            check_number(self, "n_jobs", "None or an integer other than 0", lambda v: v and v % 1 == 0)


@estimator
class RowEstimator(LinearEstimator):
    r"""A linear estimator of single rows, whose columns may be standardized.

    Parameters
    ----------
    positive : bool
        Whether the weights must be >= 0, for "l1", "l2" and "elastic".
    standardize : bool
        Whether to divide columns by their standard deviations :math:`s_j` (weighted by `sample_weight`)
        internally, as a ``StandardScaler`` before the model does. Then alpha penalizes the weights of the
        standardized columns, :math:`\Omega(s \circ w)`, and J and its bound refer to the standardized
        problem; `coef_` and `intercept_` are in the units of X. Centering columns would only change the
        intercept, so it is not done, and sparse X stays sparse. A constant column gets weight zero.
    device : str or None
        "cuda", or "cuda:1": the rows of this process are copied to the memory of that GPU for the fit, which
        needs CuPy. If they do not fit, a part of dense rows is copied in every pass, and a warning gives the
        time that takes. Rows that are on a GPU, arrays of torch or CuPy, stay where they are.

    Attributes
    ----------
    scale_ : (p,) array or None
        Standard deviations of the columns, 1 for constant ones; None unless `standardize` is set.
    """

    can_standardize = True

    positive: bool = False
    standardize: bool = False
    device: str | None = None  # type: ignore[misc]

    def _fit_rows(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        *,
        offset: Any = None,
        queries: NDArray | None = None,
        order: list[Any] | None = None,
    ) -> None:
        """Learn the labels of validated rows, minimize J, and set the fitted attributes.

        `order` are grades that y declares, from the lowest to the highest.
        """
        n_rows = X.shape[0]
        weight = normalize_weights(sample_weight, n_rows, y)
        # some non-decomposable losses count rows
        selects = self._label_kind.selects_rows or (queries is None and not resolve_loss(self).separable)
        if weight is not None and selects and not weight.all():
            used = weight > 0
            X, y, weight = select_rows(X, used), y[used], weight[used]
        rows = self._encode(y, weight, order)._replace(offset=row_offset(offset, X.shape[0]))
        w, b, placed = fit_outputs(self, X, rows, weight, queries)
        self._set_fitted(w, b, placed, rows)
        self.n_samples_fit_ = n_rows
        for name in ("coef_", "intercept_") if is_gpu_rows(X) else ():
            if name in vars(self):
                setattr(self, name, beside(vars(self)[name], X))

    def _n_unpenalized(self) -> int:
        return len(self.result_.w) - int(self.n_features_in_) * self._labels.columns(self._fitted_loss())

    def _set_weights(self, w: NDArray, b: NDArray, cuts: NDArray) -> None:
        self.coef_, self.intercept_ = w, b[0]

    def _scores(self, X: Any) -> NDArray:
        check_is_fitted(self)
        rows, w = validate_rows(self, X, reset=False), np.ravel(dense_weights(self))
        return affine_scores(rows, w, float(self._intercepts()[0]))

    def _state(self) -> tuple[dict[str, NDArray], dict[str, Any]]:
        (arrays, fitted), loss = super()._state(), self._fitted_loss()
        if self._labels.columns(loss) == 1:  # the weights by which it predicts
            arrays["coef"] = np.ravel(dense_weights(self)).astype(np.float64)
        if self.intercepts_in_w and loss.multi_output:
            fitted["intercept"] = []
        return arrays, fitted

    def _restore(self, w: NDArray, fitted: dict[str, Any], arrays: dict[str, NDArray]) -> None:
        self._labels = self._label_kind.read(fitted["labels"])
        loss = self._fitted_loss()
        n_intercepts = self._labels.columns(loss)
        size = self.n_features_in_ * n_intercepts
        if self.intercepts_in_w and loss.multi_output:
            n_intercepts, k = 0, len(self._labels.values)
            size += k if w.shape == (size + k,) else 0
        check_length(w, size)
        b = np.array(read_numbers(fitted, "intercept", n_intercepts))
        self._set_weights(w, b, self._decision.read(self._labels, fitted))
