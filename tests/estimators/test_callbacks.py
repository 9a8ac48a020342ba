"""scikit-learn's callbacks (version 1.9 or later): the tasks of a fit are hundredths of the way to tol."""

import itertools
import pickle

import numpy as np
import pytest
from estimator_cases import CASES, ONE_OF_EACH
from estimator_cases import X as ROWS
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from riskmin import LinearClassifier

callback = pytest.importorskip("sklearn.callback")

X, Y = load_breast_cancer(return_X_y=True)
X, Y = StandardScaler().fit_transform(X)[:200, :10], Y[:200]


class Recorder:
    """A callback that records its calls, and propagates to the parts of a meta-estimator."""

    max_propagation_depth = None

    def __init__(self, stop_after=None):
        self.calls, self.fitted, self.stop_after = [], [], stop_after

    def setup(self, estimator, context):
        self.calls.append(("setup", context.estimator_name))

    def teardown(self, estimator, context):
        self.calls.append(("teardown", context.estimator_name))

    def on_fit_task_begin(self, estimator, context):
        self.calls.append(("begin", context.estimator_name, context.task_name, context.task_id))

    def on_fit_task_end(self, estimator, context, *, X=None, y=None, metadata=None, fitted_estimator=None):
        self.calls.append(("end", context.estimator_name, context.task_name, context.task_id))
        if fitted_estimator is not None:
            self.fitted.append((context.task_name, context.task_id, fitted_estimator, X, y, metadata))
        return context.task_id == self.stop_after


def steps(calls, kind, name="LinearClassifier"):
    return [call[3] for call in calls if call[:3] == (kind, name, "step towards tol")]


def test_the_steps_done_are_the_share_of_the_logarithm_of_the_gap():
    recorder, seen = Recorder(), []

    def callback(iterate, row):
        seen.append((row["gap"], row["value"], len(steps(recorder.calls, "end"))))

    model = LinearClassifier("hinge", alpha=1e-3, solver="bundle", callback=callback)
    model.set_callbacks(recorder).fit(X, Y)
    first = seen[0][0]
    # the steps counted at an iteration were ended by the iterations before it
    for (gap, value, earlier), (*_, done) in itertools.pairwise(seen):
        share = np.log(first / gap) / np.log(first / (1e-3 * value))
        assert done == max(earlier, int(100 * share + 1e-9))
    assert len({done for *_, done in seen}) > 20


def test_the_fitted_estimator_of_a_step_is_that_of_the_iterate():
    recorder, iterates = Recorder(), {}
    weights = np.linspace(1, 2, len(Y))
    model = LinearClassifier(
        "hinge", alpha=1e-2, callback=lambda it, row: iterates.update({it.w.tobytes(): row})
    )
    model.set_params(solver="bundle").set_callbacks(recorder).fit(X, Y, weights)
    during = [entry for entry in recorder.fitted if entry[0] == "step towards tol"]
    assert len(during) > 10
    for _, _, fitted, X_given, y_given, metadata in during:
        assert X_given is X
        assert metadata["sample_weight"] is weights
        margins = np.where(y_given == 1, 1, -1) * fitted.decision_function(X_given)
        J = 1e-2 * np.sum(fitted.coef_**2) / 2 + np.average(np.maximum(0, 1 - margins), weights=weights)
        row = iterates[fitted.coef_.tobytes()]
        # the search for the intercept of an iterate may stop before its minimum
        assert row["lower"] <= J <= row["value"] * (1 + 1e-12)
    assert recorder.fitted[-1][2].coef_ is model.coef_


def test_a_callback_can_stop_a_fit():
    recorder = Recorder(stop_after=30)
    model = LinearClassifier("hinge", alpha=1e-3, solver="bundle").set_callbacks(recorder)
    with pytest.warns(UserWarning, match="interrupted|stopped"):
        model.fit(X, Y)
    assert model.result_.status == "interrupted"
    assert model.objective_ >= model.lower_bound_


def test_after_an_error_callbacks_are_torn_down_and_the_estimator_can_be_fitted_again():
    recorder = Recorder()
    model = LinearClassifier("hinge").set_callbacks(recorder)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.full_like(X, np.nan), Y)
    assert recorder.calls[-1] == ("teardown", "LinearClassifier")
    model.fit(X, Y)
    again = pickle.loads(pickle.dumps(model.set_callbacks()))
    assert (again.predict(X) == model.predict(X)).all()
    n_calls = len(recorder.calls)
    model.fit(X, Y)
    assert len(recorder.calls) == n_calls


@pytest.mark.parametrize(
    "name", [name for name in ONE_OF_EACH if not {"qid", "lengths"} & CASES[name].more.keys()]
)
def test_every_estimator_ends_all_steps(name):
    """Each begins when the one before it has ended, within the fit."""
    recorder, case = Recorder(), CASES[name]
    kind = type(case.model).__name__
    make_pipeline(StandardScaler(with_mean=False), clone(case.model)).set_callbacks(recorder).fit(
        ROWS, case.y
    )
    assert steps(recorder.calls, "begin", kind) == steps(recorder.calls, "end", kind) == list(range(100))
    ours = [call for call in recorder.calls if call[1] == kind]
    assert (ours[0], ours[-1]) == (("begin", kind, "fit", 1), ("end", kind, "fit", 1))
    assert [call[0] for call in ours[1:-1]] == ["begin", "end"] * 100
    assert (recorder.calls[0], recorder.calls[-1]) == (("setup", "Pipeline"), ("teardown", "Pipeline"))
