"""What an owner allows: the thresholds of all protections, read from a TOML file."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from riskmin.core.persist import parse_nested


@dataclass(frozen=True)
class Policy:
    """The thresholds of an owner's protections; the defaults are those of an owner without a policy file.

    Parameters
    ----------
    coordinators : tuple of str
        Common names of the certificates that may ask; empty for all that the authority signed.
    losses : tuple of str
        Classes of losses that are answered, such as "Hinge"; empty for all losses that are sums over rows.
    share_classes : bool
        Whether the names of the classes are sent; without them, a coordinator must know them.
    max_leverage : float
        The largest leverage of a row in what all answers together reveal; 1 for no check.
    max_rises : int
        Consecutive points at which the claimed objective, on the owner's rows, is above the lowest so far,
        after which the coordinator gets no more answers; 0 for no check.
    rise_tolerance : float
        How far above counts, relative to the objective at w = 0.
    digits : int
        Values and gradients are rounded to this many decimal digits; 0 for no rounding.
    requests_per_run, requests_per_day, runs_per_day, losses_per_day : int
        Budgets of a coordinator.
    max_weights : int
        The largest length of w.
    requests_per_second : float
        The rate above which requests are refused.
    max_bytes : int
        The largest message.
    max_seconds : float
        The time limit of one answer.
    min_owners : int
        Answers are masked, so that only sums over at least this many owners can be read; 0 for no masks.
    noise_multiplier : float
        Standard deviation of Gaussian noise, relative to the largest effect of one row; 0 for no noise.
    max_row_norm : float
        The bound of the rows' norms that noise relies on: longer rows are shortened to it.
    epsilon, delta : float
        The privacy budget of a coordinator: no answer is given beyond it.

    Examples
    --------
    >>> Policy(max_leverage=0.3).max_leverage, Policy().digits
    (0.3, 9)
    """

    coordinators: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    share_classes: bool = True
    max_leverage: float = 0.75
    max_rises: int = 10
    rise_tolerance: float = 0.25
    digits: int = 9
    requests_per_run: int = 20_000
    requests_per_day: int = 200_000
    runs_per_day: int = 100
    losses_per_day: int = 10
    max_weights: int = 10_000_000
    requests_per_second: float = 5000.0
    max_bytes: int = 2**28
    max_seconds: float = 60.0
    min_owners: int = 0
    noise_multiplier: float = 0.0
    max_row_norm: float = 0.0
    epsilon: float = 1.0
    delta: float = 1e-6

    def __post_init__(self) -> None:
        for field in fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(default, tuple):
                good = isinstance(value, tuple) and all(isinstance(name, str) for name in value)
            elif isinstance(default, bool) or isinstance(value, bool):
                good = isinstance(value, bool) and isinstance(default, bool)
            elif isinstance(default, int):
                good = isinstance(value, int) and value >= 0
            else:
                good = isinstance(value, int | float) and 0 <= value < float("inf")
            if not good:
                raise ValueError(f"policy: {field.name} = {value!r} is not like its default, {default!r}")
        if self.digits > 15:
            raise ValueError("policy: digits is above 15, the digits of a float: give 1 to 15, or 0 for all")
        if self.noise_multiplier and not self.max_row_norm:
            raise ValueError("policy: noise needs max_row_norm, the bound on the effect of one row: set both")

    @classmethod
    def from_file(cls, path: Path) -> Policy:
        """Return the policy of a TOML file; raise a ValueError that names the entry that is wrong."""
        try:
            data: dict[str, Any] = parse_nested(tomllib.loads, path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is no TOML file ({error}): write lines such as digits = 9") from None
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(data) - known):
            raise ValueError(
                f"{path}: there is no entry {unknown[0]!r}; the entries are {', '.join(sorted(known))}"
            )
        lists = {name: tuple(value) for name, value in data.items() if isinstance(value, list)}
        return cls(**(data | lists))


OPEN: dict[str, Any] = {"max_leverage": 1.0, "max_rises": 0, "digits": 0}
"""Settings that turn the checks of single answers off: for owners who trust the coordinator."""


class AnswerRefused(Exception):
    """Raised where an owner refuses an answer; `final` if it will refuse this coordinator from now on."""

    def __init__(self, reason: str, *, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final
