"""The checks of scikit-learn that an estimator cannot pass, with the reasons."""

from __future__ import annotations

from typing import Any

_SAME_AS_REPEATED = [f"check_sample_weight_equivalence_on_{kind}_data" for kind in ("dense", "sparse")]
_ONE_COLUMN = ["check_regressors_train", "check_estimator_sparse_array", "check_estimator_sparse_matrix"]
WITHIN_TOL = "both fits are within tol of the optimum, and not closer to each other"
NO_QUERIES = "rankings compare the rows of a query, and scikit-learn's checks give no qid"
TIMES = "labels are times, negative without an event, and scikit-learn's checks give zeros"
COLUMNS_OF_LEVELS = "predictions have one column per level"
DEPENDENT_COLUMNS = "the check gives dependent columns, which constraints without a penalty refuse"
NEGATIVE_LABELS = "the check draws negative labels in spite of the tag positive_only"


def expected_failed_checks(estimator: Any) -> dict[str, str]:
    """Return the names of the checks of scikit-learn that an estimator cannot pass, and why.

    The checks of weights ask for predictions equal to 1e-7. Fits with weights and with repeated rows are the
    same problem to the last bit for linear models; not so for kernel machines, for losses of pairs and
    rankings, and for balanced classes, whose weights are rounded differently.

    Parameters
    ----------
    estimator : estimator of riskmin

    Returns
    -------
    dict
        What `sklearn.utils.estimator_checks.check_estimator` takes as `expected_failed_checks`.

    Examples
    --------
    >>> from riskmin import KernelClassifier, LinearClassifier
    >>> from riskmin.testing import expected_failed_checks
    >>> expected_failed_checks(LinearClassifier())
    {}
    >>> sorted(expected_failed_checks(KernelClassifier()))
    ['check_sample_weight_equivalence_on_dense_data', 'check_sample_weight_equivalence_on_sparse_data']
    """
    from sklearn.utils.estimator_checks import estimator_checks_generator

    from riskmin.estimators.kernel.machines import KernelClassifier, KernelRegressor
    from riskmin.estimators.quantiles import LinearQuantiles
    from riskmin.estimators.ranker import LinearRanker
    from riskmin.losses import Cox, get_loss

    ranking = isinstance(estimator, LinearRanker) and get_loss(estimator.loss).task == "ranking"
    if ranking or getattr(estimator, "loss", None) in ("cox", Cox()):
        checks = (check for _, check in estimator_checks_generator(estimator))
        return {check.func.__name__: NO_QUERIES if ranking else TIMES for check in checks}
    if isinstance(estimator, LinearQuantiles):
        return dict.fromkeys(_SAME_AS_REPEATED, WITHIN_TOL) | dict.fromkeys(_ONE_COLUMN, COLUMNS_OF_LEVELS)
    balanced = estimator.get_params().get("class_weight") is not None
    kernel = isinstance(estimator, KernelClassifier | KernelRegressor)
    loss = estimator.get_params().get("loss")
    pairs = isinstance(loss, str) and estimator.task != "tagging" and not get_loss(loss).separable
    failed = dict.fromkeys(_SAME_AS_REPEATED, WITHIN_TOL) if kernel or balanced or pairs else {}
    if getattr(estimator, "alpha", 1.0) == 0 and getattr(estimator, "positive", False):
        failed |= dict.fromkeys([*_SAME_AS_REPEATED, "check_fit2d_1sample"], DEPENDENT_COLUMNS)
    tags = estimator.__sklearn_tags__().target_tags
    if tags.positive_only and tags.multi_output:
        failed["check_regressor_multioutput"] = NEGATIVE_LABELS
    return failed
