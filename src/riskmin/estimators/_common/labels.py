"""The labels that a fitted model knows: from the user's labels to the numbers y of its loss, and back.

A fitted model is a record: weights w and intercepts, `Labels`, and the cutoffs of its `Decision`. `fit`
learns them, a model file holds them, and other attributes, such as `coef_`, follow from them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np

from riskmin.arrays.namespace import (
    as_array_like,
    as_indices_like,
    count_by_index,
    in_float64,
    is_foreign,
    namespace,
    to_numpy,
)
from riskmin.core import Array, NDArray
from riskmin.core.messages import format_label
from riskmin.estimators._common.fit import loss_for_classes, resolve_loss, resolve_regularizer
from riskmin.estimators._common.outputs import loss_for_outputs
from riskmin.estimators.persistence.records import classes_to_json, read_classes, read_count
from riskmin.estimators.scikit_learn import check_classification_targets
from riskmin.losses.labels import check_finite

if TYPE_CHECKING:
    from riskmin.estimators._common.base import CertifiedEstimator


class Labels:
    """What a model knows about labels. This base class is for models that need none."""

    values: Any = None
    """The array of the classes or grades; None without."""
    on_device: ClassVar[bool] = False
    """Whether labels that are given on a GPU stay there."""
    selects_rows: ClassVar[bool] = False
    """Whether rows of weight zero are left out of the fit, with labels that no other row has."""

    @classmethod
    def learn(
        cls, model: CertifiedEstimator, y: Any, weight: NDArray | None, order: list[Any] | None = None
    ) -> Labels:
        """Return what the training labels of positive weight say; `order` holds declared grades."""
        return cls()

    def loss(self, model: CertifiedEstimator) -> Any:
        """Return the loss of the model in the form for these labels."""
        return resolve_loss(model)

    def encode(
        self, model: CertifiedEstimator, y: Any, loss: Any, weight: NDArray | None
    ) -> tuple[NDArray | None, NDArray | None]:
        """Return labels as the loss takes them, and row weights times class weights."""
        return None, weight

    def decode(self, codes: Array) -> Array:
        """Return the labels of these indices; numbers are where the indices are, text is in this process."""
        if isinstance(codes, np.ndarray) or self.values.dtype.kind not in "biuf":
            return self.values[to_numpy(codes)]
        return as_array_like(self.values, in_float64(codes[:0]))[codes]

    def columns(self, loss: Any) -> int:
        """Return how many weights w has for each feature."""
        return 1

    def separate_problems(self, loss: Any) -> str:
        """Say how to certify a model whose J is a sum of separate problems; empty for one problem."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible data, which `read` reads."""
        return {}

    @classmethod
    def read(cls, record: dict[str, Any]) -> Labels:
        """Return the labels of a model file; raise ValueError if they are not sound."""
        return cls()


@dataclass(frozen=True, eq=False)
class Numbers(Labels):
    """Real numbers: one per row, or `outputs` of them."""

    on_device = True

    outputs: int | None = None

    @classmethod
    def learn(
        cls, model: CertifiedEstimator, y: Any, weight: NDArray | None, order: list[Any] | None = None
    ) -> Numbers:
        return cls(None if np.ndim(y) == 1 else y.shape[1])

    def loss(self, model: CertifiedEstimator) -> Any:
        loss = resolve_loss(model)
        # outputs with strengths of their own are separate problems
        if self.outputs is None or np.ndim(model.alpha):
            return loss
        joint = loss_for_outputs(loss, resolve_regularizer(model))
        return loss if joint is None else joint

    def encode(
        self, model: CertifiedEstimator, y: Any, loss: Any, weight: NDArray | None
    ) -> tuple[NDArray, NDArray | None]:
        y = y if is_foreign(y) else np.asarray(y)
        if not is_foreign(y) and y.dtype.kind not in "biuf":
            check_finite(loss, y)  # raises
        numbers = in_float64(y)
        if self.outputs is None:
            return numbers, weight
        numbers = numbers.reshape(len(numbers), -1)
        if numbers.shape[1] != self.outputs:
            raise ValueError(
                f"the model predicts {self.outputs} numbers per row, but y has {numbers.shape[1]} label per "
                "row: give all outputs, in Python"
            )
        return numbers, weight

    def columns(self, loss: Any) -> int:
        return self.outputs or 1

    def separate_problems(self, loss: Any) -> str:
        separate = self.outputs is not None and not loss.multi_output
        return "its outputs are separate problems: fit and certify one model per output" if separate else ""

    def to_json(self) -> dict[str, Any]:
        return {"outputs": self.outputs}

    @classmethod
    def read(cls, record: dict[str, Any]) -> Numbers:
        return cls(None if record["outputs"] is None else read_count(record, "outputs"))


@dataclass(frozen=True, eq=False)
class Classes(Labels):
    """Two or more classes, sorted: codes 0 to k - 1 for losses of k scores, else -1 and +1."""

    on_device = True

    values: NDArray = field()  # without the default of the base class

    @classmethod
    def learn(
        cls, model: CertifiedEstimator, y: Any, weight: NDArray | None, order: list[Any] | None = None
    ) -> Classes:
        return cls(unique_classes(y, weight))

    def loss(self, model: CertifiedEstimator) -> Any:
        return loss_for_classes(resolve_loss(model), len(self.values))

    def encode(
        self, model: CertifiedEstimator, y: Any, loss: Any, weight: NDArray | None
    ) -> tuple[NDArray, NDArray | None]:
        codes = codes_among(y, self.values, weight)
        if model.class_weight is not None:
            weight = apply_class_weight(model.class_weight, self.values, codes, weight)
        labels = in_float64(codes)
        return labels if loss.multi_output else 2 * labels - 1, weight

    def columns(self, loss: Any) -> int:
        return len(self.values) if loss.multi_output else 1

    def to_json(self) -> dict[str, Any]:
        return classes_to_json(self.values)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Classes:
        values = read_classes(record)
        if len(values) < 2:
            raise ValueError("its labels are not two or more")
        return cls(values)


@dataclass(frozen=True, eq=False)
class Grades(Labels):
    """Classes in an order of their own: ranks 0 to g - 1."""

    selects_rows = True

    values: NDArray = field()  # without the default of the base class

    @classmethod
    def learn(
        cls, model: CertifiedEstimator, y: Any, weight: NDArray | None, order: list[Any] | None = None
    ) -> Grades:
        if y.dtype.kind != "f" or 2 * len(np.unique(y)) > len(y):  # grades repeat, even fractional ones
            check_classification_targets(y)
        given: Any = order if model.order is None else model.order
        return cls(ordered_grades(y if weight is None else y[weight > 0], given))

    def encode(
        self, model: CertifiedEstimator, y: Any, loss: Any, weight: NDArray | None
    ) -> tuple[NDArray, NDArray | None]:
        return codes_among(y, self.values, weight, "grade").astype(np.float64), weight

    def to_json(self) -> dict[str, Any]:
        return classes_to_json(self.values)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Grades:
        return cls(read_classes(record, in_order=False))


# ---------------------------------------------------------------- classes
def codes_among(y: Any, values: NDArray, weight: Array | None = None, noun: str = "label") -> Array:
    """Return the index of each label in `values`, where the labels are.

    Other labels are refused, except in rows of weight zero.

    Examples
    --------
    >>> codes_among(["b", "a", "b"], np.array(["a", "b"])).tolist()
    [1, 0, 1]
    """
    y = y if is_foreign(y) else np.asarray(y)
    xp = namespace(y)
    if (xp is not np or y.dtype.kind in "biuf") != (values.dtype.kind in "biuf"):  # a number is no text
        y = to_numpy(y)
        codes, known = np.zeros(len(y), np.intp), np.zeros(len(y), bool)
    elif xp is np and "O" in (y.dtype.kind, values.dtype.kind):
        index = {value: j for j, value in enumerate(values.tolist())}
        found = np.array([index.get(label, -1) for label in y.tolist()], dtype=np.intp)
        codes, known = np.maximum(found, 0), found >= 0
    elif len(values) == 2:
        first, second = (y == (value if xp is np else value.item()) for value in values)
        codes, known = xp.astype(second, xp.int64), first | second
    else:
        order = np.argsort(values)  # grades may not be sorted
        here = as_array_like(values[order], y)
        place = xp.clip(xp.searchsorted(here, y), 0, len(values) - 1)
        codes, known = as_indices_like(order, y)[place], here[place] == y
    if weight is not None:
        known = known | (weight == 0)
    if not known.all():
        unknown = min(to_numpy(y[~known]).tolist(), key=str)
        names = [format_label(label) for label in values.tolist()]
        listed = " and ".join(names) if len(names) == 2 else ", ".join(names[:9]) + ", ..." * (len(names) > 9)
        raise ValueError(
            f"the {noun} {format_label(unknown)} is none of the model's, {listed}: check the data"
        )
    return codes


def distinct_labels(y: Array) -> NDArray:
    """Return the sorted different labels, in this process.

    Two different numbers are the least and the largest, which takes no sort.

    Examples
    --------
    >>> distinct_labels(np.array([3, 1, 3])).tolist(), distinct_labels(np.array(["b", "a"])).tolist()
    ([1, 3], ['a', 'b'])
    """
    xp = namespace(y)
    if xp.isdtype(y.dtype, "numeric") and len(y):
        ends = [end.item() for end in (y.min(), y.max())]
        if bool(((y == ends[0]) | (y == ends[1])).all()):
            return np.unique(np.asarray(ends, dtype=to_numpy(y[:0]).dtype))
    distinct: NDArray = np.unique(y) if xp is np else to_numpy(xp.unique_values(y))
    return distinct


def unique_classes(y: Array, weight: Array | None) -> NDArray:
    """Return the sorted classes of the rows of positive weight; raise if there are fewer than two."""
    # np.unique of labels that cannot be compared raises a TypeError without the cause
    if y.dtype == object:
        _check_sortable(y)
    classes = distinct_labels(y)
    # few different integers are classes for certain; scikit-learn would count them once more
    if classes.dtype.kind not in "biu" or 2 * len(classes) >= len(y):
        check_classification_targets(y if namespace(y) is np else classes)
    if weight is not None:
        classes = distinct_labels(y[weight > 0])
    if len(classes) < 2:
        content = f"only one class, {classes.tolist()[0]!r}" if len(classes) else "no class"
        among = "" if weight is None else ", in the rows whose weight is not zero"
        raise ValueError(f"y holds {content}{among}, but two are needed: add rows of another")
    return classes


def _check_sortable(y: NDArray) -> None:
    """Raise if the labels cannot be sorted, such as a mixture of strings and None."""
    try:
        np.unique(y)
    except TypeError:
        kinds = ", ".join(sorted({type(label).__name__ for label in y}))
        raise ValueError(
            f"y holds labels of several kinds ({kinds}): make all of them strings, or all numbers, "
            "and drop the rows that have none"
        ) from None


def unique_two_classes(y: NDArray, weight: NDArray | None) -> NDArray:
    """Return the two classes of the rows of positive weight; raise if there are more."""
    classes = unique_classes(y, weight)
    if len(classes) > 2:
        refuse_many_classes(classes)
    return classes


def refuse_many_classes(classes: NDArray) -> NoReturn:
    """Raise because there are more than two classes."""
    from sklearn.utils.multiclass import type_of_target

    raise ValueError(
        f"Only binary classification is supported. The type of the target is {type_of_target(classes)}: "
        "wrap the model in sklearn.multiclass.OneVsRestClassifier"
    )


def apply_class_weight(given: Any, classes: NDArray, codes: Array, weight: Array | None) -> Array:
    """Return the row weights times the weights of their classes, where ``classes[codes]`` are the labels."""
    k = len(classes)
    weight = 0 * in_float64(codes) + 1 if weight is None else weight
    if given == "balanced":
        # factor = total weight / (k * weight of the class): all classes get the same sum
        factors = float(weight.sum()) / (k * to_numpy(count_by_index(codes, weight, k)))
    else:
        from sklearn.utils.class_weight import compute_class_weight

        # a dict needs no counts: each class occurs once in `y=classes`
        factors = compute_class_weight(given, classes=classes, y=classes)
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        which = "both" if k == 2 else "all"
        raise ValueError(f"class_weight={given!r} must give {which} classes a finite weight > 0")
    product: Array = weight * as_array_like(factors, weight)[codes]
    return product


def ordered_grades(y: NDArray, given: Any) -> NDArray:
    """Return the grades that occur in y: in the given order, else sorted."""
    grades: NDArray = np.unique(y)
    if given is not None:
        rank = {label: k for k, label in enumerate(given)}
        if len(rank) != len(given) or (unknown := [c for c in grades.tolist() if c not in rank]):
            problem = f"y holds {unknown[0]!r}" if len(rank) == len(given) else "one occurs twice"
            raise ValueError(f"order={given!r} must name every grade once, but {problem}: add or drop it")
        grades = grades[np.argsort([rank[c] for c in grades.tolist()])]
    if len(grades) < 2:
        raise ValueError(
            f"y holds only one class, {grades.tolist()[0]!r}, but two are needed: add rows of another grade"
        )
    return grades
