"""Solvers: settings with one method, a generator of iterates. `riskmin.minimize` drives them."""

from riskmin.solvers.auto import Auto as Auto
from riskmin.solvers.bundle import Bmrm as Bmrm
from riskmin.solvers.bundle import Bundle as Bundle
from riskmin.solvers.bundle import LineSearchBmrm as LineSearchBmrm
from riskmin.solvers.lbfgs import Lbfgs as Lbfgs
