"""Gaussian-process classification: the posterior mode is a kernel machine, fitted with a certificate."""

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.preprocessing import StandardScaler

import riskmin


def binary() -> None:
    """Two classes: -log p(y | f) - log p(f) is n J, with the logistic loss and alpha = 1 / n."""
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    kernel = ConstantKernel(4.0) * RBF(5.0)
    machine = riskmin.KernelClassifier(
        "logistic", kernel=kernel, alpha=1 / len(y), fit_intercept=False, tol=1e-10
    ).fit(X, y)
    theirs = GaussianProcessClassifier(kernel, optimizer=None).fit(X, y).base_estimator_

    n, f = len(y), machine.decision_function(X)
    result = machine.result_
    print(f"-log p(f | y) = {n * result.value:.4f}, and no f has less than {n * result.lower:.4f}")
    K = kernel(X)
    latent = K @ (theirs.y_train_ - theirs.pi_)  # at the mode, K^-1 f is the gradient of log p(y | f)
    print(f"scikit-learn's mode of the posterior differs by {abs(latent - f).max():.1e} at most")


def multiclass() -> None:
    """Ten classes: one function per class, softmax, and the kernel by an incomplete Cholesky factor."""
    X, y = load_digits(return_X_y=True)
    train, test = np.arange(len(y)) < 600, np.arange(len(y)) >= 600
    n = int(train.sum())
    factor = riskmin.IncompleteCholesky("rbf", gamma=0.0007, tol=1e-4)
    L = 4.0 * factor.fit_transform(X[train])  # L L' is 16 times the kernel
    risk = riskmin.linear_risk(L, y[train], riskmin.Softmax())
    result = riskmin.minimize(riskmin.Objective(risk, riskmin.L2(), lam=1 / n))
    W = result.w.reshape(L.shape[1], -1)
    predicted = np.argmax(4.0 * factor.transform(X[test]) @ W, axis=1)
    print(
        f"ten classes: {n * result.lower:.2f} <= least -log p(f | y) <= {n * result.value:.2f} "
        f"({result.status}, rank {L.shape[1]}, {factor.residual_:.1e} of the kernel left out), "
        f"{np.mean(predicted == y[test]):.1%} of the new digits right"
    )


if __name__ == "__main__":
    binary()
    multiclass()
