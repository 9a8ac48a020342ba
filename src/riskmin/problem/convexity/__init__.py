r"""Checks of user-defined losses and risks, before a run and during it.

A lower bound rests on three properties: the risk is convex, it is not negative, and its gradient is a
subgradient, :math:`R(v) \ge R(w) + g^\top (v - w)`. Evaluations at finitely many points can refute these, but
not prove them. riskmin's own losses are checked by its tests, and are not checked again.
"""

from riskmin.problem.convexity.before import check as check
from riskmin.problem.convexity.watch import CutMonitor as CutMonitor
from riskmin.problem.convexity.watch import monitor_for as monitor_for
