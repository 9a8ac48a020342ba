"""Public checks of the protocols' contracts, for user-defined classes as well as for riskmin's.

A check runs a set of cases and raises an AssertionError that names the property that fails, and where.
"""

from riskmin.testing.executors import check_executor as check_executor
from riskmin.testing.inputs import check_inputs as check_inputs
from riskmin.testing.losses import check_loss as check_loss
from riskmin.testing.regularizers import check_regularizer as check_regularizer
from riskmin.testing.scikit_learn import expected_failed_checks as expected_failed_checks
from riskmin.testing.solvers import check_solver as check_solver
