"""The choice of a solver, in one place and with its reason."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from riskmin.objective import Objective
from riskmin.solvers.bundle import Bundle
from riskmin.types import Array, Iterate, Solver


@dataclass(frozen=True)
class Auto:
    def choose(self, obj: Objective) -> tuple[Solver, str]:
        return Bundle(), "x"
