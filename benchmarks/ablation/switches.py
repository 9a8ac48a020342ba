"""The switches: one per optional mechanism, an assignment or two that turn it off, and the fits it is for.

A switch is for the losses and regularizers named in `tasks` ("hinge", "hinge l1"), and, if `sparse` is given,
for sparse or dense X alone. A fit on which a switch changes neither the bits of w nor the number of oracle
calls does not use the mechanism. Mechanisms that only store or read X in another way leave these as they are:
their replacement counts its calls (`Counted`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from riskmin.solvers import auto

SMOOTH = ("logistic", "squared_hinge", "squared", "huber", "poisson")
NONSMOOTH = ("hinge", "absolute", "quantile", "epsilon_insensitive")
CLASSES = ("softmax", "multiclass_hinge")
LISTS = ("roc_area", "prbep", "f1")
L1 = ("lasso", "logistic l1", "squared_hinge l1", "huber l1", "poisson l1")
NONSMOOTH_L1 = ("hinge l1", "absolute l1", "quantile l1", "epsilon_insensitive l1")
CLASSES_L1 = ("softmax l1", "multiclass_hinge l1")
EVERY_TASK = (*SMOOTH, *NONSMOOTH, *CLASSES, *LISTS, *L1, *NONSMOOTH_L1, *CLASSES_L1)


class Patch(NamedTuple):
    """An assignment: `module:Class` (or a module), the attribute, and its value without the mechanism."""

    owner: str
    attribute: str
    value: Any

    def resolve(self) -> Any:
        module, _, name = self.owner.partition(":")
        found = import_module(f"riskmin.{module}")
        return getattr(found, name) if name else found


class Switch(NamedTuple):
    """A mechanism, the assignments that turn it off, and the fits it is for."""

    patches: tuple[Patch, ...]
    tasks: tuple[str, ...]
    sparse: bool | None = None
    selects: bool = False
    """Whether it is for fits alone for which `Auto` selects other solvers without it."""


@dataclass
class Counted:
    """A function in place of a method, which counts its calls."""

    function: Callable[..., Any]
    calls: int = 0

    def __get__(self, instance: Any, owner: Any = None) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            self.calls += 1
            return self.function(instance, *args)

        return call


@contextmanager
def switched_off(switch: Switch) -> Iterator[None]:
    """Run with the mechanism off."""
    owners = [patch.resolve() for patch in switch.patches]
    before = [
        (owner, patch.attribute, patch.attribute in vars(owner), vars(owner).get(patch.attribute))
        for owner, patch in zip(owners, switch.patches, strict=True)
    ]
    try:
        for owner, patch in zip(owners, switch.patches, strict=True):
            _assign(owner, patch.attribute, patch.value)
        yield
    finally:
        for owner, name, own, value in before:
            if own:
                _assign(owner, name, value)
            else:
                delattr(owner, name)


def _assign(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    else:
        object.__setattr__(owner, name, value)  # costs are a frozen record


def counted_calls(switch: Switch) -> int:
    return sum(patch.value.calls for patch in switch.patches if isinstance(patch.value, Counted))


# ---------------------------------------------------------------- replacements
NEVER = classmethod(lambda cls, *args, **kwargs: False)
NONE = classmethod(lambda cls, *args, **kwargs: None)


def without(*_: Any, **__: Any) -> None:
    """A method that offers nothing."""


def no(*_: Any, **__: Any) -> bool:
    return False


def infinite(*_: Any) -> float:
    """The cost of what is never done."""
    return math.inf


def no_results(objectives: Any, solver: Any, limits: Any) -> Iterator[None]:
    """None for each lam: every one is a run of its own."""
    return iter([None] * len(objectives))


def no_hessian_product(X: Any, d: Any, h: Any) -> None:
    """None: the callers take two products."""


def rules() -> dict[str, Switch]:
    """`Auto` without each of its rules but the last resort: a later one applies."""
    rules = [one for one in auto.RULES if one is not auto.OTHER]
    return {
        f"rule: {one.solver.name} for {one.problem}": Switch(
            (Patch("solvers.auto", "RULES", tuple(other for other in auto.RULES if other is not one)),),
            EVERY_TASK,
            selects=True,
        )
        for one in rules
    }


NEWTON, CD = "solvers.newton.", "solvers.coordinate."
STAGES, SYSTEM = NEWTON + "stages:StagedNewton", NEWTON + "systems:NewtonSystem"
OUTPUTS = NEWTON + "multi_output.systems:OutputSystem"

SWITCHES = {
    # ------------------------------------------------------------ Newton's method
    "Newton: sampled start": Switch(
        (Patch(STAGES, "SAMPLES", ()),),
        (*SMOOTH, *NONSMOOTH),
    ),
    "Newton: kept factorization": Switch((Patch(SYSTEM, "_kept_step", without),), SMOOTH),
    "Newton: updated gradients": Switch((Patch(STAGES, "MAX_UPDATES", 0),), NONSMOOTH),
    "Newton: one array of columns and ones": Switch(
        (Patch(NEWTON + "columns_and_ones", "MAX_COPIED_ENTRIES", 0),), (*SMOOTH, *NONSMOOTH), sparse=False
    ),
    "Newton: copied active rows": Switch(
        (Patch(SYSTEM, "COPIED_SHARE", 0.0),), (*NONSMOOTH, "squared_hinge"), sparse=True
    ),
    "Newton: systems of few rows": Switch((Patch(SYSTEM, "ROWS_GAIN", math.inf),), (*SMOOTH, *NONSMOOTH)),
    "Newton: extra smoothing": Switch((Patch(STAGES, "MIN_CURVED_WEIGHT", 0.0),), ("huber", "squared_hinge")),
    "Newton, several outputs: systems of few rows": Switch(
        (Patch(OUTPUTS, "_rows_cost", infinite),), CLASSES, sparse=False
    ),
    "Newton, several outputs: one matrix for all": Switch(
        (Patch(OUTPUTS, "_shared_cost", infinite),), CLASSES
    ),
    "Newton, several outputs: copied active rows": Switch(
        (Patch(OUTPUTS, "COPIED_SHARE", 0.0),), ("multiclass_hinge",)
    ),
    "Newton, several outputs: one array of columns and ones": Switch(
        (Patch(NEWTON + "multi_output.columns:OutputColumns", "MAX_COPIED_ENTRIES", 0),),
        CLASSES,
        sparse=False,
    ),
    # ------------------------------------------------------------ coordinate descent
    "L1: active set": Switch((Patch(CD + "quadratic_model", "active_set_search", no),), L1),
    "L1: predicted slopes": Switch(
        (Patch(CD + "subproblem:CoordinateProblem", "predicted_slopes", without),), L1
    ),
    "L1: step of nonzero weights": Switch(
        (Patch(CD + "scaled_columns:ScaledColumns", "MAX_CONJUGATE_GRADIENTS", 0),), L1, sparse=True
    ),
    "L1: larger Gram matrices after slow models": Switch(
        (Patch(CD + "columns:SparseColumns", "SLOW_GRAM_MAX_CYCLES", 18),), L1, sparse=True
    ),
    # ------------------------------------------------------------ paths and cross-validation
    "path: joint runs": Switch(
        (
            Patch("driver.path", "joint_results", no_results),
            Patch("estimators._common.fold_moments:FoldMoments", "of", NONE),
        ),
        ("lasso path", "elastic path", "ridge path"),
    ),
    # ------------------------------------------------------------ interior points, bundles, other forms
    "master problem by barriers": Switch(
        (Patch("solvers.bundle.barrier_program:BarrierProgram", "from_objective", NONE),),
        (*LISTS, *NONSMOOTH_L1),
    ),
    "break-even point as a hinge loss": Switch(
        (Patch("solvers.transformed.separable_form:SeparableProblem", "from_objective", NONE),), ("prbep",)
    ),
    # ------------------------------------------------------------ Auto
    "Auto: dual, then Newton": Switch(
        (Patch("solvers.newton.newton:Newton", "passes_per_digit", NONE),), (*NONSMOOTH, "squared_hinge")
    ),
    "Auto: fallbacks": Switch(
        (Patch("solvers.portfolio:_Turn", "is_too_slow", no),),
        (*SMOOTH, *NONSMOOTH, *CLASSES, *L1, *LISTS),
    ),
    "Auto: preconditioning": Switch(
        (Patch("driver.loop", "preconditioner", without),), (*SMOOTH, *NONSMOOTH, *CLASSES, *L1)
    ),
    # ------------------------------------------------------------ memory
    "products with the Hessian in one read": Switch(
        (Patch("arrays.compressed:Csr", "hessian_product", Counted(no_hessian_product)),),
        (*SMOOTH, *NONSMOOTH),
        sparse=True,
    ),
    "traced losses": Switch(
        (Patch("problem.risk:Risk", "COMPILE_FROM_ENTRIES", math.inf),), (*SMOOTH, *NONSMOOTH, *L1)
    ),
    **rules(),
}
