"""A certified support vector machine, and how far scikit-learn's LinearSVC is from the optimum."""

from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import riskmin


def main() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X, signs = StandardScaler().fit_transform(X), 2.0 * y - 1
    lam = 1e-3
    J = riskmin.Objective(riskmin.linear_risk(X, signs, riskmin.Hinge()), riskmin.L2(), lam)

    ours = riskmin.minimize(J, tol=1e-6)
    print(f"riskmin   J = {ours.value:.6f}, and min J >= {ours.lower:.6f} ({ours.status}, {ours.solver})")

    # LinearSVC multiplies the sum of the losses by C; riskmin multiplies the regularizer by lam
    theirs = LinearSVC(loss="hinge", C=1 / (lam * len(y)), fit_intercept=False, max_iter=100_000).fit(X, y)
    value = J.value(theirs.coef_[0])
    gap = (value - ours.lower) / value
    print(f"LinearSVC J = {value:.6f}: by the same bound, within {gap:.1e} of optimal")
    assert ours.lower <= value


if __name__ == "__main__":
    main()
