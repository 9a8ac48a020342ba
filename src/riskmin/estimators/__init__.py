"""Estimators with scikit-learn's conventions, and their files. scikit-learn is imported here alone."""

from riskmin.estimators.cholesky import IncompleteCholesky as IncompleteCholesky
from riskmin.estimators.classifier import LinearClassifier as LinearClassifier
from riskmin.estimators.cv import LinearClassifierCV as LinearClassifierCV
from riskmin.estimators.cv import LinearRegressorCV as LinearRegressorCV
from riskmin.estimators.kernel import KernelClassifier as KernelClassifier
from riskmin.estimators.kernel import KernelRegressor as KernelRegressor
from riskmin.estimators.novelty import NoveltyDetector as NoveltyDetector
from riskmin.estimators.online import OnlineClassifier as OnlineClassifier
from riskmin.estimators.regressor import LinearRegressor as LinearRegressor
from riskmin.estimators.store import load_model as load_model
from riskmin.estimators.store import save_model as save_model
