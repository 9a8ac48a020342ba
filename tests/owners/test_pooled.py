"""The pooled risk over owners: the same optimum and certificate as with all rows in one place."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning
from tests.owners.conftest import Local, in_one_place, owner_of, pool, split, table, tls_files, tls_paths

import riskmin as rm
from riskmin.owners.client import OwnerRefused, OwnerUnavailable
from riskmin.owners.executor import OwnersExecutor
from riskmin.owners.protection.policy import OPEN, Policy
from riskmin.owners.server import OwnerServer
from riskmin.owners.wire.certificates import make_authority
from riskmin.owners.wire.codec import OwnerMessage


def check_pooled_optimum(result, same, tol):
    """Check that a result over owners encloses the minimum of the same rows in one place, within tol."""
    best = rm.minimize(same, tol=1e-6)
    assert result.status == "converged"
    assert result.lower <= best.value
    assert result.value >= best.lower
    exact = same.value(result.w)
    assert exact <= result.value <= exact * (1 + 1e-4)
    assert exact - best.lower <= (tol + 2e-5) * exact


@pytest.mark.parametrize(
    ("loss", "reg", "lam", "intercept", "masked"),
    [
        ("logistic", rm.L2(), 1e-3, True, False),
        ("logistic", rm.L1(), 1e-2, False, False),
        ("hinge", rm.L2(), 1e-2, False, False),
        ("hinge", rm.Elastic(eps=0.5), 1e-2, False, True),
        ("quantile:level=0.7", rm.L2(), 1e-2, False, False),
        ("softmax", rm.L2(), 1e-3, True, True),
        ("ndcg", rm.L2(), 1e-1, False, False),
    ],
)
def test_owners_reach_the_pooled_optimum(certificates, loss, reg, lam, intercept, masked):
    """Under the default policy, and if only sums of three owners can be read."""
    X, y, qid = table(3000)
    owners = pool(split(X, y, qid), Policy(min_owners=3 * masked), certificates)
    result = rm.minimize(owners.objective(owners.risk(loss, fit_intercept=intercept), reg, lam), tol=3e-3)
    qid = qid if loss == "ndcg" else None
    check_pooled_optimum(result, in_one_place(X, y, loss, reg, lam, intercept=intercept, qid=qid), 3e-3)


@pytest.mark.parametrize(
    ("loss", "solver", "intercept"), [("hinge", rm.Bundle(), True), ("logistic", rm.Lbfgs(), False)]
)
def test_sums_have_the_bits_of_one_process(serve, loss, solver, intercept):
    """Without rounding, each owner is a shard: the iterates of a run are the same, bit for bit."""
    X, y, _ = table(600)
    parts = split(X, y, shares=(1 / 3, 2 / 3))
    risk = rm.linear_risk(X, 2 * y - 1, loss, fit_intercept=intercept, n_shards=3)
    # not the largest scores but powers of two bound them: 1e-2 is reached before scores are recomputed
    same = rm.minimize(rm.Objective(risk, rm.L2(), 1e-2), solver, tol=1e-2)
    for start in (pool, serve):
        owners = start(parts, Policy(**OPEN))
        objective = owners.objective(owners.risk(loss, fit_intercept=intercept), rm.L2(), 1e-2)
        result = rm.minimize(objective, solver, tol=1e-2)
        np.testing.assert_array_equal(result.w, same.w)
        values, local = ([row["value"] for row in run.trace] for run in (result, same))
        assert values[:-1] == local[:-1]
        # the last J has the midpoint of the best intercepts where the scores of all rows can be gathered
        assert values[-1] == pytest.approx(local[-1], rel=1e-12)


def test_rounding_is_in_the_certificate():
    """Answers of three digits give a wider bound, which still holds, and never a false one."""
    X, y, _ = table(300, 4)
    best = rm.minimize(in_one_place(X, y, "logistic", rm.L2(), 1e-2), tol=1e-9)
    gaps = []
    for digits in (3, 5, 12):
        owners = pool(split(X, y), Policy(digits=digits, max_leverage=1.0))
        result = rm.minimize(owners.objective(owners.risk("logistic"), rm.L2(), 1e-2), tol=1e-6, max_iter=12)
        assert result.lower <= best.value <= result.value * (1 + 1e-12)
        gaps.append(result.gap / result.value)
    assert gaps[0] > 10 * gaps[1] > 100 * gaps[2]


# ---------------------------------------------------------------- estimators
@pytest.mark.parametrize("standardize", [False, True])
def test_classifiers_fit_raw_units_and_weights(standardize):
    X, y, _ = table(3000)
    X, names = X * 10.0 ** np.arange(-4, 4) + 3.0, np.where(y > 0, "yes", "no")
    weight = np.random.default_rng(1).uniform(0.5, 2.0, len(y))
    parts = split(X, names)
    for part, its_weight in zip(parts.values(), split(weight, y).values(), strict=True):
        part["weight"] = its_weight["X"]
    # columns of raw units need more rounds than these rows can hide
    settings = {"alpha": 1e-3, "standardize": standardize}
    model = pool(parts, Policy(max_leverage=1.0)).fit(rm.LinearClassifier("logistic", **settings))
    same = rm.LinearClassifier("logistic", tol=1e-7, **settings).fit(X, names, sample_weight=weight)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.weighted_
    assert abs(model.objective_ - same.objective_) <= 1e-3 * same.objective_
    assert model.lower_bound_ <= same.objective_
    if standardize:
        np.testing.assert_allclose(model.scale_, same.scale_, rtol=1e-9)
    assert np.mean(model.predict(X) == same.predict(X)) > 0.99


def test_regressors_and_rankers():
    X, y, qid = table(3000)
    model = pool(split(X, y)).fit(rm.LinearRegressor("squared", alpha=1e-3))
    same = rm.LinearRegressor("squared", alpha=1e-3, tol=1e-6).fit(X, y)
    assert abs(model.objective_ / same.objective_ - 1) <= 1e-3
    ranker = pool(split(X, y, qid)).fit(rm.LinearRanker("ndcg", alpha=1e-1, tol=2e-2))
    assert ranker.n_queries_ == len(np.unique(qid))
    assert ranker.score(X, y, qid=qid) > 0.9


@pytest.mark.parametrize("digits", [3, 9])
def test_a_certificate_is_verified_with_the_owners_and_in_one_place(tmp_path, digits):
    """Owners round values up, and the claim says by how much; a larger claim, or other rows, are refuted."""
    X, y, _ = table(3000)
    owners = pool(split(X, y), Policy(digits=digits))
    model = owners.fit(rm.LinearClassifier("logistic", alpha=1e-2, tol=0.1))
    rm.save_model(model, tmp_path / "pooled.riskmin")
    loaded = rm.load_model(tmp_path / "pooled.riskmin")
    assert loaded.result_.value_error == model.result_.value_error > 0
    assert rm.certify(loaded, X, y).status in ("certified", "bounded")
    assert rm.certify(loaded, X, 1 - y).status == "refuted"
    assert owners.certify(model).status in ("certified", "bounded")
    assert pool(split(X, 1 - y)).certify(model).status == "refuted"
    loaded.result_ = replace(loaded.result_, value=loaded.result_.value * 1.1)
    assert rm.certify(loaded, X, y).status == "refuted"
    model.lower_bound_ = model.objective_
    assert owners.certify(model).status == "refuted"


# ---------------------------------------------------------------- runs that owners end
def test_a_fit_that_few_rows_end_names_the_cause_and_the_remedy():
    """20 rows per owner: the bounds enclose the optimum, but leverages forbid to prove 1e-3."""
    X, y, _ = table(60, 2)
    owners = pool(split(X, y, shares=(1 / 3, 2 / 3)))
    with pytest.warns(ConvergenceWarning, match=r"too few to hide.*raise max_leverage"):
        model = owners.fit(rm.LinearClassifier("hinge", alpha=0.1, fit_intercept=False, solver="bundle"))
    best = rm.minimize(in_one_place(X, y, "hinge", rm.L2(), 1e-1), tol=1e-7)
    assert model.result_.status == "stalled"
    assert model.lower_bound_ <= best.value <= model.objective_ * (1 + 1e-12)
    assert owners.connections[0].n_rounds < 2500


def test_a_fit_to_rows_that_are_too_few_to_hide_ends_after_few_requests():
    X, y, _ = table(120, 4)
    owners = pool({"north": {"X": X[:60], "y": y[:60]}, "south": {"X": X[60:], "y": y[60:]}})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            owners.fit(rm.LinearClassifier("logistic", alpha=1e-2))
            (reason,) = (str(w.message) for w in caught)
        except OwnerRefused as error:  # the same sentence, where no answer brings the run further
            reason = str(error)
    assert "too few to hide" in reason
    assert owners.connections[0].n_rounds < 2500


def test_hinge_with_an_intercept_ends_near_the_pooled_optimum():
    """Late answers are coarse: the value, intercept and bound of the best point stay."""
    X, y, _ = table(3000)
    with pytest.warns(ConvergenceWarning, match="too few to hide"):
        model = pool(split(X, y)).fit(rm.LinearClassifier("hinge", alpha=1e-2))
    assert model.gap_ <= 1e-2 * model.objective_
    scores = model.decision_function(X)
    exact = 0.5e-2 * float(np.sum(model.coef_**2)) + np.mean(np.maximum(0, 1 - (2 * y - 1) * scores))
    assert model.lower_bound_ <= exact <= model.objective_ * (1 + 1e-9)
    assert exact >= model.objective_ - model.result_.value_error


@pytest.mark.parametrize(("loss", "requests"), [("logistic", 40), ("hinge", 60)])
def test_a_run_that_an_owner_refuses_to_go_on_with_returns_its_best_point(loss, requests):
    X, y, _ = table(3000)
    owners = pool(split(X, y), Policy(requests_per_run=requests))
    with pytest.warns(ConvergenceWarning, match=r"north refuses.*requests"):
        model = owners.fit(rm.LinearClassifier(loss, alpha=1e-3, fit_intercept=False, tol=1e-9))
    best = rm.minimize(in_one_place(X, y, loss, rm.L2(), 1e-3), tol=1e-6)
    assert model.result_.status == "stalled"
    assert model.lower_bound_ <= best.value
    assert model.objective_ >= best.lower
    assert model.objective_ < 0.95 * {"hinge": 1.0, "logistic": np.log(2)}[loss]  # that at w = 0


def one_masks(parts, certificates):
    """Two owners, of which one masks its answers."""
    west = owner_of(parts, "west", Policy(min_owners=2), certificates)
    return OwnersExecutor.from_connections([Local(owner_of(parts, "north")), Local(west)])


MODEL, OTHER_COLUMNS = rm.LinearClassifier("logistic"), {"X": np.ones((9, 5)), "y": np.ones(9)}
REFUSED = [
    (lambda parts, _: pool(parts).risk("roc_area"), ValueError, "scores of all rows in one place"),
    (lambda parts, _: pool(parts).risk("f1"), ValueError, "one place"),
    (lambda parts, _: pool(parts).risk("chain_crf"), ValueError, "whole sequences"),
    (lambda parts, _: pool(parts).risk("logistic").labels, TypeError, "owners do not send"),
    (lambda parts, _: pool(parts | {"west": OTHER_COLUMNS}), ValueError, "other columns"),
    (lambda parts, _: pool(parts, Policy(requests_per_run=3)).fit(MODEL), OwnerRefused, "north refuses"),
    (
        lambda parts, tls: pool(parts, Policy(min_owners=4), tls).risk("logistic"),
        OwnerRefused,
        "sums of 4 different owners",
    ),
    (lambda parts, tls: one_masks(parts, tls).risk("logistic"), ValueError, "some owners mask"),
]


@pytest.mark.parametrize(("call", "error", "words"), REFUSED)
def test_what_owners_do_not_answer_is_refused_with_the_reason(certificates, call, error, words):
    with pytest.raises(error, match=words):
        call(split(*table(600)[:2]), certificates)


# ---------------------------------------------------------------- owners that are restarted
@pytest.mark.parametrize("masked", [False, True])
def test_a_run_goes_on_with_an_owner_that_was_restarted(certificates, masked):
    X, y, _ = table(3000)
    parts, policy = split(X, y), Policy(min_owners=3 * masked)
    owners = pool(parts, policy, certificates)
    restarts = []

    def callback(iterate, row):
        if row["iteration"] in (2, 4):
            restarts.append(row["iteration"])
            owners.connections[1].owner = owner_of(parts, "south", policy, certificates)

    objective = owners.objective(owners.risk("logistic"), rm.L2(), 1e-3)
    result = rm.minimize(objective, callback=callback, tol=1e-4)
    assert restarts == [2, 4]
    check_pooled_optimum(result, in_one_place(X, y, "logistic", rm.L2(), 1e-3), 1e-4)


def test_changed_rows_are_noticed():
    parts = split(*table(3000)[:2])
    owners = pool(parts)

    def callback(iterate, row):
        if row["iteration"] == 2:
            parts["south"]["X"] = parts["south"]["X"] + 1e-9 * np.eye(750, 8)
            owners.connections[1].owner = owner_of(parts, "south")

    objective = owners.objective(owners.risk("logistic"), rm.L2(), 1e-3)
    with pytest.raises(ValueError, match="rows of south have changed"):
        rm.minimize(objective, callback=callback, tol=1e-4)


def test_a_run_pauses_without_an_owner_and_resumes(serve, certificates, tmp_path):
    X, y, _ = table(3000)
    parts = split(X, y)
    owners = serve(parts, patience=0.3)

    def callback(iterate, row):
        if row["iteration"] == 4:
            owners.servers["west"].stop()

    settings = {"tol": 1e-5, "checkpoint": tmp_path / "run.ckpt"}
    with pytest.raises(OwnerUnavailable, match=r"west.*has not answered for 0.3 seconds"):
        rm.minimize(owners.objective(owners.risk("logistic"), rm.L2(), 1e-3), callback=callback, **settings)
    tls = tls_files(certificates, "west")
    owners.servers["west"] = OwnerServer(owner_of(parts, "west"), tls, owners.addresses[2][1])
    # as the next process does: another connection
    again = OwnersExecutor(owners.addresses, **tls_paths(certificates, "coordinator"))
    result = rm.minimize(again.objective(again.risk("logistic"), rm.L2(), 1e-3), **settings)
    again.close()
    # the iterations before the pause are part of the run
    assert len({row["iteration"] for row in result.trace}) == result.n_iter > 5
    check_pooled_optimum(result, in_one_place(X, y, "logistic", rm.L2(), 1e-3), 1e-5)


def test_clients_without_the_right_key_and_long_messages_are_refused(serve, certificates, tmp_path):
    X, y, _ = table(600)
    policy = Policy(coordinators=("coordinator",), max_bytes=2**22)
    owners = serve({"north": {"X": X, "y": y}}, policy)
    # of the same authority, but not in the policy
    with pytest.raises(OwnerRefused, match="stranger is not among the coordinators"):
        OwnersExecutor(owners.addresses, **tls_paths(certificates, "stranger"), patience=0.5)
    # of another authority, with the right name
    make_authority(tmp_path, ["coordinator"], ["127.0.0.1"])
    forged = tls_paths(tmp_path, "coordinator") | {"ca": certificates / "ca.pem"}
    with pytest.raises(OwnerUnavailable):
        OwnersExecutor(owners.addresses, **forged, patience=0.5)
    with pytest.raises(OwnerRefused, match=r"longer than the policy|more than the"):
        owners.connections[0].ask(OwnerMessage("describe", {}, {"w": np.zeros(2**20)}))
    assert owners.connections[0].ask(OwnerMessage("describe")).kind == "answer"


def test_the_value_is_that_of_the_returned_intercept_whatever_the_solver():
    """A smoothed solver compares values at other intercepts than the one that is returned."""
    X, y, _ = table(3000)
    with pytest.warns(ConvergenceWarning):
        model = pool(split(X, y)).fit(rm.LinearClassifier("hinge", alpha=1e-2, solver="smoothing"))
    scores = model.decision_function(X)
    exact = 0.5e-2 * float(np.sum(model.coef_**2)) + np.mean(np.maximum(0, 1 - (2 * y - 1) * scores))
    assert exact <= model.objective_ * (1 + 1e-9)
    assert exact >= model.objective_ - model.result_.value_error
    assert model.lower_bound_ <= exact
