"""The linear system of Newton's method for several outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from riskmin.core import Array, NDArray


class LinearSystem(ABC):
    """The linear system of Newton's steps for one problem, a strategy that may remember earlier steps."""

    tries_unit_step = False
    """Whether the step t = 1 is tried before a line search: the Hessian changes slowly."""
    steps: float
    """Expected steps of conjugate gradients, or another estimate of the cost, for states."""

    @abstractmethod
    def residual_tolerance(self, g: Array, scaled_gap: float) -> float:
        """The residual norm that conjugate gradients may leave; `scaled_gap` is lam times complementarity."""

    @abstractmethod
    def solve(self, hessian: Any, lam: float, g: Array, tol: float) -> Array:
        """The direction d, up to a residual of norm `tol`."""

    def check_direction(self, hessian: Any, dz: NDArray, t: float) -> None:
        """Compare a matrix that is not the current one with the Hessian along dz = X d, after a step t."""
        return

    def discard(self) -> bool:
        """Drop the matrix after a direction without descent; return whether the next one will be better."""
        return False

    def to_state(self) -> dict[str, Any]:
        """The numbers (and the array "kept") to continue from."""
        return {"cg_steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `to_state` returned."""
        self.steps = state["cg_steps"]
