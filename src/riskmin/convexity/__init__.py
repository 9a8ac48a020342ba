r"""Losses and risks of a user's own: checked before anything is claimed of them, and watched in the run.

A lower bound rests on three properties: the risk is convex, it is not negative, and its gradient is a
subgradient, :math:`R(v) \ge R(w) + g^\top (v - w)`. Points that are looked at can refute these, but not
prove them. riskmin's own losses are checked by its tests, and cost nothing here.
"""

from riskmin.convexity.before import check as check
from riskmin.convexity.owner import is_foreign as is_foreign
from riskmin.convexity.owner import refuse_nan as refuse_nan
from riskmin.convexity.watch import Watch as Watch
from riskmin.convexity.watch import watch as watch
