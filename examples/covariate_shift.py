"""Covariate shift: importance weights of the training rows from a distributed logistic risk.

python examples/covariate_shift.py [--data FOLDER]      (FOLDER holds reg_cal_housing.svm.xz)

Labeled rows x are drawn from p(x), rows to be predicted from q(x); the distribution of labels given x is the
same. With equal total weights of both kinds, the logistic risk of separating them is minimal at the log of
the density ratio, z(x) = log q(x) / p(x). The certified fit gives exp(z) as weights of the training rows, so
that their weighted risk estimates the risk under q. All rows stay in their partitions during both fits: Lbfgs
needs values and gradients only.
"""

import argparse
from pathlib import Path

import numpy as np

import riskmin
from riskmin.data import load


def generated():
    """A cubic to which a line is fitted; training rows and rows to be predicted lie on different parts."""
    rng = np.random.default_rng(0)
    X, T = rng.standard_normal((8000, 6)), rng.standard_normal((8000, 6))
    X[:, 0], T[:, 0] = 0.7 * X[:, 0] + 0.6, 0.5 * T[:, 0] - 0.6

    def labels(X):
        return X[:, 0] ** 3 - X[:, 0] + 0.3 * X[:, 1] + 0.3 * rng.standard_normal(len(X))

    return X, labels(X), T, labels(T)


def houses(folder):
    """Prices of houses: few labels are known where incomes are low; the others are to be predicted."""
    X, y, *_ = load(folder / "reg_cal_housing.svm.xz")
    X, y = X.toarray(), y / 1e5
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    rng = np.random.default_rng(0)
    labeled = rng.random(len(y)) < 1 / (1 + np.exp(-3 * X[:, 7]))
    return X[labeled], y[labeled], X[~labeled], y[~labeled]


def partition(X, name, n_partitions=3):
    """Rows in partitions, as they would be in files or on the workers of a cluster."""
    parts = [
        riskmin.InMemoryPartition(x, f"{name} {k + 1}") for k, x in enumerate(np.array_split(X, n_partitions))
    ]
    return riskmin.PartitionedMatrix(parts, executor=riskmin.Processes(n_workers=2))


def with_squares(X):
    return np.hstack([X, X**2])


def density_ratio(X, T):
    """The density ratio q(x) / p(x) at the training rows, from a fit to the rows of both kinds."""
    train, target = partition(with_squares(X), "training rows"), partition(with_squares(T), "rows to predict")
    both = riskmin.PartitionedMatrix([*train.parts, *target.parts], executor=train.executor)
    sign = np.repeat([-1.0, 1.0], [len(X), len(T)])
    weight = np.where(sign < 0, 1 / len(X), 1 / len(T))
    model = riskmin.LinearClassifier("logistic", alpha=1e-5, tol=1e-6, solver="lbfgs")
    model.fit(both, sign, sample_weight=weight)
    print(
        f"ratio: {model.lower_bound_:.6f} <= min J <= {model.objective_:.6f}, certified gap {model.gap_:.1e}"
    )
    ratio = np.exp(model.decision_function(train))
    return ratio / ratio.mean()


def main(folder=None) -> None:
    X, y, T, t = generated() if folder is None else houses(folder)
    weight = density_ratio(X, T)
    print(f"effective sample size {weight.sum() ** 2 / (weight @ weight):.0f} of {len(X)} rows")
    for name, weights in {"unweighted": None, "weighted": weight}.items():
        model = riskmin.LinearRegressor("squared", alpha=1e-6, tol=1e-6, solver="lbfgs")
        model.fit(partition(X, "training rows"), y, sample_weight=weights)
        error = np.sqrt(np.mean((model.predict(T) - t) ** 2))
        print(
            f"{name:10}  J = {model.objective_:.5f}, certified gap {model.gap_:.1e}, "
            f"error on the rows to predict {error:.4f}"
        )


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, help="folder with reg_cal_housing.svm.xz")
    main(options.parse_args().data)
