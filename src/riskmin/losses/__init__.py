"""Convex losses of the scores, each written once for all array libraries (NumPy, torch, CuPy)."""

from __future__ import annotations

from typing import Any

from riskmin.core.registry import Registry
from riskmin.losses.base import Loss as Loss
from riskmin.losses.base import Smoothed as Smoothed
from riskmin.losses.base import as_loss as as_loss
from riskmin.losses.chain import ChainCrf as ChainCrf
from riskmin.losses.chain import ChainMaxMargin as ChainMaxMargin
from riskmin.losses.families import Gamma as Gamma
from riskmin.losses.families import NegativeBinomial as NegativeBinomial
from riskmin.losses.families import Tweedie as Tweedie
from riskmin.losses.margin import Exponential as Exponential
from riskmin.losses.margin import Hinge as Hinge
from riskmin.losses.margin import Logistic as Logistic
from riskmin.losses.margin import Novelty as Novelty
from riskmin.losses.margin import PowerHinge as PowerHinge
from riskmin.losses.margin import Probit as Probit
from riskmin.losses.margin import SmoothedHinge as SmoothedHinge
from riskmin.losses.margin import SquaredHinge as SquaredHinge
from riskmin.losses.multiclass import MulticlassHinge as MulticlassHinge
from riskmin.losses.multiclass import MulticlassSquaredHinge as MulticlassSquaredHinge
from riskmin.losses.multiclass import MultivariateSquared as MultivariateSquared
from riskmin.losses.multiclass import Softmax as Softmax
from riskmin.losses.nondecomposable.contingency import FBeta as FBeta
from riskmin.losses.nondecomposable.contingency import PrecisionAtK as PrecisionAtK
from riskmin.losses.nondecomposable.contingency import RecallAtK as RecallAtK
from riskmin.losses.nondecomposable.cox import Cox as Cox
from riskmin.losses.nondecomposable.huber_scale import HuberScale as HuberScale
from riskmin.losses.nondecomposable.nu import Nu as Nu
from riskmin.losses.nondecomposable.pairwise import Ordinal as Ordinal
from riskmin.losses.nondecomposable.pairwise import RocArea as RocArea
from riskmin.losses.nondecomposable.position_weights import PositionWeights as PositionWeights
from riskmin.losses.nondecomposable.prbep import Prbep as Prbep
from riskmin.losses.nondecomposable.ranking import ExpectedRankUtility as ExpectedRankUtility
from riskmin.losses.nondecomposable.ranking import Mrr as Mrr
from riskmin.losses.nondecomposable.ranking import Ndcg as Ndcg
from riskmin.losses.nondecomposable.ranking import PairwiseHinge as PairwiseHinge
from riskmin.losses.regression import Absolute as Absolute
from riskmin.losses.regression import EpsilonInsensitive as EpsilonInsensitive
from riskmin.losses.regression import Expectile as Expectile
from riskmin.losses.regression import Huber as Huber
from riskmin.losses.regression import Poisson as Poisson
from riskmin.losses.regression import Quantile as Quantile
from riskmin.losses.regression import Squared as Squared

_OWN: dict[str, Any] = {
    "hinge": Hinge(),
    "perceptron": Hinge(margin=0.0),
    "squared_hinge": SquaredHinge(),
    "power_hinge": PowerHinge(),
    "smoothed_hinge": SmoothedHinge(),
    "exponential": Exponential(),
    "logistic": Logistic(),
    "probit": Probit(),
    "novelty": Novelty(),
    "squared": Squared(),
    "absolute": Absolute(),
    "quantile": Quantile(),
    "epsilon_insensitive": EpsilonInsensitive(),
    "squared_epsilon_insensitive": EpsilonInsensitive(power=2.0),
    "huber": Huber(),
    "huber_scale": HuberScale(),
    "expectile": Expectile(),
    "poisson": Poisson(),
    "gamma": Gamma(),
    "tweedie": Tweedie(),
    "negative_binomial": NegativeBinomial(),
    "cox": Cox(),
    "roc_area": RocArea(),
    "prbep": Prbep(),
    "f1": FBeta(),
    "f_beta": FBeta(),
    "precision_at_k": PrecisionAtK(),
    "recall_at_k": RecallAtK(),
    "ordinal": Ordinal(),
    "ndcg": Ndcg(),
    "mrr": Mrr(),
    "expected_rank_utility": ExpectedRankUtility(),
    "pairwise_hinge": PairwiseHinge(),
    "softmax": Softmax(),
    "multiclass_hinge": MulticlassHinge(),
    "multiclass_squared_hinge": MulticlassSquaredHinge(),
    "multivariate_squared": MultivariateSquared(),
    "chain_crf": ChainCrf(),
    "chain_max_margin": ChainMaxMargin(),
}
_SYNONYMS = {
    "log_loss": "logistic",
    "logloss": "logistic",
    "log": "logistic",
    "binary_crossentropy": "logistic",
    "cross_entropy": "softmax",
    "multinomial": "softmax",
    "crammer_singer": "multiclass_hinge",
    "modified_huber": "smoothed_hinge",
    "svm": "hinge",
    "squared_error": "squared",
    "squared_loss": "squared",
    "mse": "squared",
    "least_squares": "squared",
    "absolute_error": "absolute",
    "mae": "absolute",
    "pinball": "quantile",
    "svr": "epsilon_insensitive",
    "auc": "roc_area",
    "roc_auc": "roc_area",
    "lambdarank": "ndcg",
    "ranksvm": "pairwise_hinge",
    "one_class": "novelty",
    "crf": "chain_crf",
}
"""Names of losses in scikit-learn, LIBLINEAR, LightGBM and others."""

# Nu and Smoothed wrap another loss and therefore have no name; PositionWeights are a setting of losses
LOSSES = Registry(
    "loss",
    "value_grad",
    "riskmin.losses",
    "huber:delta=2",
    _OWN,
    Nu,
    Smoothed,
    PositionWeights,
    synonyms=_SYNONYMS,
)
"""The losses by the names that commands and estimators accept."""


def get_loss(loss: Any) -> Any:
    """Return the loss of a name; any other object as a `Loss` (see `as_loss`).

    Parameters
    ----------
    loss : str or Loss
        A name of `LOSSES`, optionally with parameters after a colon (``"huber:delta=2"``,
        ``"epsilon_insensitive:epsilon=0.5,power=2"``); a class to import
        (``"package.module:Class,level=0.9"``); or a loss object.

    Returns
    -------
    Loss
        The loss.

    Examples
    --------
    >>> get_loss("quantile:level=0.9")
    Quantile(level=0.9)
    >>> get_loss(Hinge(margin=2.0))
    Hinge(margin=2.0)
    """
    return LOSSES.resolve(loss, as_loss, "with a method value_grad(z, y, c)")


def register_loss(name: str, loss: Any) -> None:
    """Add a loss to `LOSSES`: estimators accept its name, and models with it can be loaded.

    Parameters
    ----------
    name : str
        A Python identifier; not the name of a loss of riskmin.
    loss : Loss
        An object with a method `value_grad`, or its class. The fields of a dataclass can be set after the
        name: ``"name:level=0.9"``.

    Examples
    --------
    >>> register_loss("median", Quantile(level=0.5))
    >>> get_loss("median"), get_loss("median:level=0.25")
    (Quantile(level=0.5), Quantile(level=0.25))
    >>> del LOSSES["median"]
    """
    LOSSES.register(name, loss)


def formula(loss: Loss) -> str:
    """Return the formula of a loss in one line of plain text."""
    return as_loss(loss).formula or repr(loss)
