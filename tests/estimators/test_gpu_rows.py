"""Estimators on rows of a GPU: tensors of torch stand in for them, with the same code but the kernels."""

import numpy as np
import pytest
import scipy.sparse as sp

import riskmin as rm
from riskmin.arrays.devices import placement
from riskmin.arrays.devices.streamed import StreamedRows
from riskmin.arrays.matrix import as_matrix
from riskmin.estimators import gpu_rows as devices

N, P = 100, 6


@pytest.fixture
def torch(monkeypatch):
    """PyTorch, whose tensors count as tensors on a GPU."""
    library = pytest.importorskip("torch")
    # a machine without a GPU has no other tensors
    monkeypatch.setattr(devices, "is_on_gpu", lambda a: isinstance(a, library.Tensor))
    return library


def rows(n_classes=2):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, P)) * [1, 10, 0.1, 1, 1, 1] + [0, 5, 0, 0, 0, 0]
    y = np.argmax(X @ rng.standard_normal((P, n_classes)) + rng.standard_normal((N, n_classes)), axis=1)
    return X, y


@pytest.mark.parametrize(
    "model",
    [
        rm.LinearClassifier("hinge", alpha=1e-1),
        rm.LinearClassifier("logistic", alpha=1e-2, standardize=True),
        rm.LinearClassifier("logistic", alpha=1e-2, fit_intercept=False, class_weight="balanced"),
        rm.LinearClassifier("roc_area", alpha=1e-1),
    ],
    ids=lambda model: f"{model.loss}{'' if not model.standardize else ', standardized'}",
)
def test_a_classifier_of_tensors_is_that_of_arrays(torch, model):
    X, y = rows(2 if model.loss in ("roc_area", "hinge") else 3)
    here = rm.LinearClassifier(**model.get_params()).fit(X, y)
    there = rm.LinearClassifier(**model.get_params()).fit(torch.asarray(X), torch.asarray(y))
    assert isinstance(there.coef_, torch.Tensor)
    assert isinstance(there.intercept_, torch.Tensor)
    assert there.coef_.shape == here.coef_.shape
    # both bounds are proved for the same problem
    assert there.lower_bound_ <= here.objective_ * (1 + 1e-12)
    assert here.lower_bound_ <= there.objective_ * (1 + 1e-12)
    z = there.decision_function(torch.asarray(X))
    assert isinstance(z, torch.Tensor)
    expected = X @ there.coef_.numpy().T + there.intercept_.numpy()
    np.testing.assert_allclose(z.numpy(), np.squeeze(expected), rtol=1e-9, atol=1e-12)
    labels = there.predict(torch.asarray(X))
    assert isinstance(labels, torch.Tensor)
    assert there.score(torch.asarray(X), torch.asarray(y)) == np.mean(labels.numpy() == y)
    # rows of this process are scored by the same model
    np.testing.assert_array_equal(there.predict(X), labels.numpy())
    if model.loss == "logistic":
        p = there.predict_proba(torch.asarray(X))
        np.testing.assert_allclose(p.numpy(), there.predict_proba(X), rtol=1e-12)


def test_a_regressor_of_tensors_and_its_file(torch, tmp_path):
    X, _ = rows()
    y = X @ np.arange(P) + np.random.default_rng(1).standard_normal(N)
    model = rm.LinearRegressor("huber", alpha=1e-3).fit(torch.asarray(X, dtype=torch.float32), y)
    assert isinstance(model.coef_, torch.Tensor)
    assert model.score(torch.asarray(X), torch.asarray(y)) > 0.99
    rm.save_model(model, tmp_path / "model.riskmin")
    again = rm.load_model(tmp_path / "model.riskmin")
    np.testing.assert_array_equal(again.coef_, model.coef_.numpy())
    np.testing.assert_allclose(again.predict(X), model.predict(torch.asarray(X)).numpy(), rtol=1e-12)


def test_text_labels_and_wrong_shapes(torch):
    X, y = rows()
    names = np.array(["no", "yes"])[y]
    model = rm.LinearClassifier("hinge", alpha=1e-2).fit(torch.asarray(X), names)
    assert set(model.predict(torch.asarray(X))) == {"no", "yes"}
    with pytest.raises(ValueError, match="X has 3 features, but LinearClassifier is expecting 6"):
        model.predict(torch.asarray(X[:, :3]))
    with pytest.raises(ValueError, match=r"y has 5 labels, but X has 100 rows"):
        rm.LinearClassifier().fit(torch.asarray(X), y[:5])
    with pytest.raises(ValueError, match="two dimensions"):
        rm.LinearClassifier().fit(torch.asarray(X[:, 0]), y)


# ---------------------------------------------------------------- without a GPU
def test_the_cpu_is_a_device():
    X, y = rows()
    here = rm.LinearClassifier(device="cpu").fit(X, y)
    np.testing.assert_array_equal(here.coef_, rm.LinearClassifier().fit(X, y).coef_)


def test_too_little_memory_is_named_with_its_size(monkeypatch):
    X, y = rows()
    # a GPU with little memory, which no machine of the tests has
    monkeypatch.setattr(placement, "why_no_gpu", lambda: "")
    monkeypatch.setattr(placement, "free_memory", {0: 1000, 1: 10**5, 3: None}.get)
    with pytest.raises(
        ValueError, match=r"X takes 0.0 GB on the device, and cuda has 0.0 GB free: give X in"
    ):
        rm.LinearClassifier(device="cuda").fit(X, y)
    with pytest.raises(ValueError, match="device='cuda:3': there is no GPU of this number"):
        rm.LinearClassifier(device="cuda:3").fit(X, y)
    # sparse rows are laid out as a whole
    with pytest.raises(ValueError, match="fewer rows, or leave device out"):
        rm.LinearClassifier(device="cuda:1").fit(sp.csr_array(np.tile(X, 9)), y)


# ---------------------------------------------------------------- rows that do not fit
class Copies(StreamedRows):
    """Rows of the host of which a part is copied in every pass; torch's tensors stand in for a device."""

    def __init__(self, X, resident):
        torch = pytest.importorskip("torch")
        super().__init__(np.asfortranarray(X), resident, torch.empty(0), block_bytes=7 * 8 * X.shape[1])


@pytest.mark.parametrize("resident", [0, 20, N])
@pytest.mark.parametrize("loss", ["logistic", "roc_area"])
def test_rows_that_are_copied_in_every_pass_have_the_same_risk_and_minimum(loss, resident):
    X, y = rows()
    signs, w = np.where(y > 0, 1.0, -1.0), np.linspace(-0.3, 0.2, P)
    copies, out = Copies(X, resident), np.zeros(P)
    np.testing.assert_allclose(copies.scores(w, 11, 41).numpy(), X[11:41] @ w, rtol=1e-12)
    copies.pullback(np.arange(30.0), 11, 41, out)
    np.testing.assert_allclose(out, X[11:41].T @ np.arange(30.0), rtol=1e-12)
    risks = [rm.linear_risk(A, signs, loss) for A in (X, copies)]
    (value, slope), (same, alike) = (risk(w) for risk in risks)
    assert same == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(alike, slope, rtol=1e-10, atol=1e-13)
    here, there = (rm.minimize(rm.Objective(risk, rm.L2(), 1e-1)) for risk in risks)
    assert there.status == "converged"
    assert max(here.lower, there.lower) <= min(here.value, there.value) * (1 + 1e-12)
    X[50, 1] = np.nan
    with pytest.raises(ValueError, match=r"\(row 50, column 1\)"):
        rm.linear_risk(Copies(X, resident), signs, loss)


def test_sparse_tensors_are_refused_in_words_without_a_gpu():
    library = pytest.importorskip("torch")
    with np.errstate(all="ignore"), pytest.warns(UserWarning, match="(?i)sparse"):
        X = library.eye(3).to_sparse_csr()
    with pytest.raises(ValueError, match=r"CuPy|on the CPU: give X\.cuda"):
        as_matrix(X)


@pytest.mark.parametrize(
    "model",
    [
        rm.LinearClassifier("logistic", alpha=1e-2, class_weight="balanced"),
        rm.LinearClassifier("hinge", alpha=1e-2),
        rm.LinearRegressor("quantile:level=0.3", alpha=1e-2),
        rm.LinearRegressor("squared", alpha=1e-2),
    ],
    ids=lambda model: str(model.loss),
)
def test_vectors_over_rows_stay_on_the_device(torch, model, monkeypatch):
    """No vector with an entry per row is copied to this process in a fit or a prediction."""
    rng = np.random.default_rng(0)
    # more rows than the sample that decides on the units of the columns
    n, p = 2**15, 4
    X = torch.asarray(rng.standard_normal((n, p)))
    s = X @ torch.asarray(rng.standard_normal(p)) + torch.asarray(rng.standard_normal(n))
    y = (s > 0).to(torch.float32) if isinstance(model, rm.LinearClassifier) else s
    weight = torch.asarray(rng.random(n))
    library = torch.Tensor
    copied, to_cpu, numpy = [], library.cpu, library.numpy

    def counted(copy):
        def method(tensor, *args, **keywords):
            copied.append(tensor.numel())
            return copy(tensor, *args, **keywords)

        return method

    monkeypatch.setattr(library, "cpu", counted(to_cpu))
    monkeypatch.setattr(library, "numpy", counted(numpy))
    monkeypatch.setattr(library, "__array__", counted(library.__array__))
    fitted = model.fit(X, y, sample_weight=weight)
    predicted = fitted.predict(X)
    assert max(copied, default=0) <= n // 2
    monkeypatch.undo()
    assert isinstance(predicted, library)
    here = type(model)(**model.get_params()).fit(X.numpy(), y.numpy(), sample_weight=weight.numpy())
    assert fitted.lower_bound_ <= here.objective_ * (1 + 1e-12)
    assert here.lower_bound_ <= fitted.objective_ * (1 + 1e-12)


def test_classes_of_tensors_and_what_they_refuse(torch):
    X, y = rows(3)
    X = torch.asarray(X)
    model = rm.LinearClassifier("logistic", alpha=1e-2)
    np.testing.assert_array_equal(model.fit(X, torch.asarray(y) * 10).classes_, [0, 10, 20])
    np.testing.assert_array_equal(model.fit(X, torch.asarray(y > 0)).classes_, [False, True])
    weight = torch.asarray((y < 2).astype(float))
    np.testing.assert_array_equal(model.fit(X, torch.asarray(y), sample_weight=weight).classes_, [0, 1])
    for labels, words in (
        (torch.asarray(y / 3), "Unknown label type"),
        (torch.asarray(np.zeros(N)), "only one class"),
        (torch.asarray(np.full(N, np.nan)), "contains NaN"),
        (torch.asarray(y[1:]), "one label per row"),
    ):
        with pytest.raises(ValueError, match=words):
            model.fit(X, labels)
    with pytest.raises(ValueError, match="must be >= 0"):
        model.fit(X, torch.asarray(y), sample_weight=-weight)
