"""The pooled risk over owners: the same optimum and certificate as with all rows in one place."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from tests.owners.conftest import split, table, tls_files, tls_paths

from riskmin import (
    L1,
    L2,
    Bundle,
    Elastic,
    Lbfgs,
    LinearClassifier,
    LinearRanker,
    LinearRegressor,
    Objective,
    Shard,
    certify,
    linear_risk,
    load_model,
    minimize,
    save_model,
)
from riskmin.arrays.matrix import as_matrix
from riskmin.core import ShardCache
from riskmin.executors.base import SerialExecutor
from riskmin.owners.client import OwnerRefused, OwnerUnavailable
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.owner import Owner
from riskmin.owners.protection.policy import OPEN, Policy
from riskmin.owners.risk import PooledRisk
from riskmin.owners.server import OwnerServer
from riskmin.problem.intercept.strategies import with_intercept

PROBLEMS = [
    ("logistic", L2(), 1e-3, True),
    ("logistic", L1(), 1e-2, False),
    # with server processes, these are in test_processes.py
    pytest.param("hinge", L2(), 1e-2, False, marks=pytest.mark.exhaustive),
    pytest.param("quantile:level=0.7", L2(), 1e-2, False, marks=pytest.mark.exhaustive),
    pytest.param("softmax", L2(), 1e-3, True, marks=pytest.mark.exhaustive),
    pytest.param("ndcg", L2(), 1e-2, False, marks=pytest.mark.exhaustive),
    pytest.param("hinge", Elastic(eps=0.5), 1e-2, False, marks=pytest.mark.exhaustive),
]


def pooled(X, y, qid, loss, fit_intercept):
    """The risk of the same rows in one place."""
    signs = loss in ("hinge", "logistic")
    return linear_risk(
        X, 2 * y - 1 if signs else y, loss, fit_intercept=fit_intercept, qid=qid if loss == "ndcg" else None
    )


def check_pooled_optimum(owners, loss, reg, lam, intercept):
    """Fit the rows of `table()` over owners, and compare with the same rows in one place."""
    X, y, qid = table()
    result = minimize(owners.objective(owners.risk(loss, fit_intercept=intercept), reg, lam), tol=1e-3)
    same = Objective(pooled(X, y, qid, loss, intercept), reg, lam)
    best = minimize(same, tol=1e-5)
    assert result.status == "converged"
    # the certificate is that of the pooled problem: its bounds enclose the optimum
    assert result.lower <= best.value
    assert result.value >= best.lower
    exact = same.value(result.w)
    assert exact <= result.value <= exact + 1e-4 * exact
    assert exact - best.lower <= 1.02e-3 * exact


@pytest.mark.parametrize(("loss", "reg", "lam", "intercept"), PROBLEMS)
def test_owners_reach_the_pooled_optimum_under_the_default_policy(serve, loss, reg, lam, intercept):
    check_pooled_optimum(serve(split(*table())), loss, reg, lam, intercept)


@pytest.mark.parametrize(
    ("loss", "solver", "intercept"),
    [
        ("hinge", Bundle(), False),
        ("logistic", Lbfgs(), True),
        pytest.param("hinge", Bundle(), True, marks=pytest.mark.exhaustive),
        pytest.param("logistic", Lbfgs(), False, marks=pytest.mark.exhaustive),
    ],
)
def test_sums_have_the_bits_of_one_process(serve, loss, solver, intercept):
    """Without rounding, each owner is a shard: the iterates of a run are the same, bit for bit."""
    X, y, _ = table(600)
    parts = split(X, y)
    owners = serve(parts, Policy(**OPEN))
    risk = owners.risk(loss, fit_intercept=intercept)
    objective = owners.objective(risk, L2(), 1e-2)
    shards = [
        Shard(as_matrix(part["X"]), 2 * part["y"] - 1, np.full(len(part["y"]), 1 / len(y)), ShardCache())
        for part in parts.values()
    ]
    executor = SerialExecutor(shards)
    executor.n_restarts, executor.value_at_zero = 0, risk.executor.value_at_zero
    executor.raises_values, executor.minima = True, []
    same = PooledRisk(risk.loss, risk.linear_map, executor, 8)
    same = with_intercept(same) if intercept else same
    # not the largest scores but powers of two bound them: 1e-2 is reached before scores are recomputed
    a = minimize(objective, solver, tol=1e-2)
    b = minimize(Objective(same, L2(), 1e-2), solver, tol=1e-2)
    np.testing.assert_array_equal(a.w, b.w)
    assert [row["value"] for row in a.trace] == [row["value"] for row in b.trace]


def test_rounding_is_in_the_certificate(serve):
    """Answers of three digits give a wider bound, which still holds, and never a false one."""
    X, y, _ = table(300, 4)
    best = minimize(Objective(pooled(X, y, None, "logistic", False), L2(), 1e-2), tol=1e-9)
    gaps = []
    for digits in (3, 5, 12):
        owners = serve(split(X, y), Policy(digits=digits, max_leverage=1.0))
        result = minimize(owners.objective(owners.risk("logistic"), L2(), 1e-2), tol=1e-6, max_iter=12)
        assert result.lower <= best.value <= result.value * (1 + 1e-12)
        gaps.append(result.gap / result.value)
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]


@pytest.mark.parametrize("standardize", [pytest.param(False, marks=pytest.mark.exhaustive), True])
def test_estimators_fit_raw_units_and_weights(serve, standardize):
    rng = np.random.default_rng(1)
    X, y, _ = table(6000)
    X = X * 10.0 ** np.arange(-4, 4) + 3.0
    weight = rng.uniform(0.5, 2.0, len(y))
    parts, first = split(X, np.where(y > 0, "yes", "no")), 0
    for part in parts.values():
        part["weight"] = weight[first : first + len(part["y"])]
        first += len(part["y"])
    # columns of raw units need many rounds: more than 1500 rows can hide
    owners = serve(parts, Policy(max_leverage=0.75 if standardize else 1.0))
    settings = {"alpha": 1e-3, "standardize": standardize}
    model = owners.fit(LinearClassifier("logistic", **settings))
    same = LinearClassifier("logistic", tol=1e-7, **settings).fit(
        X, np.where(y > 0, "yes", "no"), sample_weight=weight
    )
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.weighted_
    assert abs(model.objective_ - same.objective_) <= 1e-3 * same.objective_
    assert model.lower_bound_ <= same.objective_
    if standardize:
        np.testing.assert_allclose(model.scale_, same.scale_, rtol=1e-9)
    assert np.mean(model.predict(X) == same.predict(X)) > 0.99


def test_regressor(serve):
    X, y, _ = table()
    model = serve(split(X, y)).fit(LinearRegressor("squared", alpha=1e-3))
    same = LinearRegressor("squared", alpha=1e-3, tol=1e-6).fit(X, y)
    assert abs(model.objective_ / same.objective_ - 1) <= 1e-3


@pytest.mark.exhaustive
def test_ranker(serve):
    X, y, qid = table()
    ranker = serve(split(X, y, qid)).fit(LinearRanker("ndcg", alpha=1e-2, tol=1e-2))
    assert ranker.n_queries_ == len(np.unique(qid))
    assert ranker.score(X, y, qid=qid) > 0.9


def test_a_certificate_is_verified_with_the_owners(serve):
    X, y, _ = table()
    shared = serve(split(X, y))
    model = shared.fit(LinearClassifier("logistic", alpha=1e-2))
    assert shared.certify(model).status == "certified"
    assert serve(split(X, 1 - y)).certify(model).status == "refuted"
    model.lower_bound_ = model.objective_
    assert shared.certify(model).status == "refuted"


def test_a_fit_that_few_rows_end_names_the_cause_and_the_remedy(serve):
    """20 rows per owner: the bounds enclose the optimum, but leverages forbid to prove 1e-3."""
    X, y, _ = table(60, 2)
    owners = serve(split(X, y, shares=(1 / 3, 2 / 3)))
    with pytest.warns(ConvergenceWarning, match=r"too few to hide.*raise max_leverage"):
        model = owners.fit(LinearClassifier("hinge", alpha=0.1, fit_intercept=False, solver="bundle"))
    best = minimize(Objective(pooled(X, y, None, "hinge", False), L2(), 1e-1), tol=1e-7)
    assert model.result_.status == "stalled"
    assert model.lower_bound_ <= best.value <= model.objective_ * (1 + 1e-12)


@pytest.mark.parametrize("loss", ["hinge", "logistic"])
def test_a_fit_to_rows_that_are_too_few_to_hide_ends_after_few_requests(serve, loss):
    X, y, _ = table(120, 4)
    owners = serve({"north": {"X": X[:60], "y": y[:60]}, "south": {"X": X[60:], "y": y[60:]}})
    reasons = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            owners.fit(LinearClassifier(loss, alpha=1e-2))
        except OwnerRefused as error:  # the same sentence, where no answer brings the run further
            reasons.append(str(error))
    assert any("too few to hide" in reason for reason in [*reasons, *(str(w.message) for w in caught)])
    assert owners.connections[0].n_rounds < 2500


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_hinge_with_an_intercept_ends_near_the_pooled_optimum(serve, seed):
    """Late answers may be coarse: the value, intercept and bound of the best point stay."""
    X, y, _ = table(6000, seed=seed)
    owners = serve(split(X, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = owners.fit(LinearClassifier("hinge", alpha=1e-2))
    assert model.gap_ <= 1e-2 * model.objective_
    scores = model.decision_function(X)
    exact = 0.5e-2 * float(np.sum(model.coef_**2)) + np.mean(np.maximum(0, 1 - (2 * y - 1) * scores))
    assert model.lower_bound_ <= exact <= model.objective_ * (1 + 1e-9)
    assert exact >= model.objective_ - model.result_.value_error


@pytest.mark.parametrize("requests", [40, 60])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_a_run_that_an_owner_refuses_to_go_on_with_returns_its_best_point(serve, loss, requests):
    X, y, _ = table(3000)
    owners = serve(split(X, y), Policy(requests_per_run=requests))
    with pytest.warns(ConvergenceWarning, match=r"north refuses.*requests"):
        model = owners.fit(LinearClassifier(loss, alpha=1e-3, fit_intercept=False, tol=1e-9))
    best = minimize(Objective(pooled(X, y, None, loss, False), L2(), 1e-3), tol=1e-6)
    assert model.result_.status == "stalled"
    assert model.lower_bound_ <= best.value
    assert model.objective_ >= best.lower
    assert model.objective_ < 0.95 * {"hinge": 1.0, "logistic": np.log(2)}[loss]  # that at w = 0


def test_a_refusal_before_the_first_point_is_raised(serve):
    owners = serve(split(*table(3000)[:2]), Policy(requests_per_run=3))
    with pytest.raises(OwnerRefused, match="north refuses"):
        owners.fit(LinearClassifier("logistic", alpha=1e-3))


@pytest.mark.parametrize("digits", [3, 9])
def test_a_pooled_model_is_certified_with_all_rows_in_one_place(serve, tmp_path, digits):
    """Owners round values up, and the claim says by how much; a larger claim is refuted."""
    X, y, _ = table(3000)
    model = serve(split(X, y), Policy(digits=digits)).fit(LinearClassifier("logistic", alpha=1e-2, tol=0.1))
    save_model(model, tmp_path / "pooled.riskmin")
    loaded = load_model(tmp_path / "pooled.riskmin")
    assert loaded.result_.value_error == model.result_.value_error > 0
    assert certify(loaded, X, y).status in ("certified", "bounded")
    assert certify(loaded, X, 1 - y).status == "refuted"
    loaded.result_ = replace(loaded.result_, value=loaded.result_.value * 1.1)
    assert certify(loaded, X, y).status == "refuted"


@pytest.mark.parametrize(
    ("loss", "reason"),
    [("roc_area", "scores of all rows in one place"), ("f1", "one place"), ("chain_crf", "whole sequences")],
)
def test_losses_of_all_scores_are_refused_with_the_reason(shared, loss, reason):
    with pytest.raises(ValueError, match=reason):
        shared.risk(loss)


def test_steps_that_need_single_rows_are_refused(shared):
    risk = shared.risk("logistic")
    with pytest.raises(TypeError, match="owners do not send"):
        _ = risk.labels


# ---------------------------------------------------------------- restarts
def restart(owners, certificates, name, arrays, policy=None):
    """Stop an owner, and start it again at the same port, in this process."""
    old = owners.servers[name]
    old.stop()
    owner = Owner(**arrays, name=name, policy=policy)
    owners.servers[name] = OwnerServer(owner, tls_files(certificates, name), f"127.0.0.1:{old.port}")


def test_a_run_goes_on_with_an_owner_that_was_restarted(serve, certificates):
    X, y, _ = table(3000)
    parts = split(X, y)
    owners = serve(parts)
    restarts = []

    def callback(iterate, row):
        if row["iteration"] in (2, 4):
            restarts.append(row["iteration"])
            restart(owners, certificates, "south", parts["south"])

    result = minimize(owners.objective(owners.risk("logistic"), L2(), 1e-3), callback=callback, tol=1e-4)
    best = minimize(Objective(pooled(X, y, None, "logistic", False), L2(), 1e-3), tol=1e-8)
    assert restarts == [2, 4]
    assert result.status == "converged"
    assert result.lower <= best.value <= result.value * (1 + 1e-9) <= best.value * (1 + 2e-4)


def test_changed_rows_are_noticed(serve, certificates):
    X, y, _ = table(3000)
    parts = split(X, y)
    owners = serve(parts)

    def callback(iterate, row):
        if row["iteration"] == 2:
            changed = parts["south"]["X"].copy()
            changed[7, 3] += 1e-9
            restart(owners, certificates, "south", parts["south"] | {"X": changed})

    with pytest.raises(ValueError, match="rows of south have changed"):
        minimize(owners.objective(owners.risk("logistic"), L2(), 1e-3), callback=callback, tol=1e-4)


def test_a_run_pauses_without_an_owner_and_resumes(serve, certificates, tmp_path):
    X, y, _ = table(3000)
    parts = split(X, y)
    owners = serve(parts, patience=0.3)

    def callback(iterate, row):
        if row["iteration"] == 4:
            owners.servers["west"].stop()

    settings = {"tol": 1e-5, "checkpoint": tmp_path / "run.ckpt"}
    with pytest.raises(OwnerUnavailable, match=r"west.*has not answered for 0.3 seconds"):
        minimize(owners.objective(owners.risk("logistic"), L2(), 1e-3), callback=callback, **settings)
    restart(owners, certificates, "west", parts["west"])
    # as the next process does: another connection
    again = OwnersExecutor(owners.addresses, **tls_paths(certificates, "coordinator"))
    result = minimize(again.objective(again.risk("logistic"), L2(), 1e-3), **settings)
    again.close()
    assert result.status == "converged"
    # the iterations before the pause are part of the run
    assert len({row["iteration"] for row in result.trace}) == result.n_iter > 5
    best = minimize(Objective(pooled(X, y, None, "logistic", False), L2(), 1e-3), tol=1e-9)
    assert result.lower <= best.value <= result.value * (1 + 1e-9)


def test_clients_without_the_right_key_are_refused(serve, certificates, tmp_path):
    from riskmin.owners.wire.certificates import make_authority

    X, y, _ = table(600)
    owners = serve({"north": {"X": X, "y": y}}, Policy(coordinators=("coordinator",)))
    # of the same authority, but not in the policy
    with pytest.raises(OwnerRefused, match="stranger is not among the coordinators"):
        OwnersExecutor(owners.addresses, **tls_paths(certificates, "stranger"), patience=0.5)
    # of another authority, with the right name
    make_authority(tmp_path, ["coordinator"], ["127.0.0.1"])
    forged = tls_paths(tmp_path, "coordinator") | {"ca": certificates / "ca.pem"}
    with pytest.raises(OwnerUnavailable):
        OwnersExecutor(owners.addresses, **forged, patience=0.5)


def test_owners_with_other_columns_are_refused(serve):
    X, y, _ = table(600)
    with pytest.raises(ValueError, match="other columns"):
        serve({"north": {"X": X, "y": y}, "south": {"X": X[:, :5], "y": y}})
