"""LIBLINEAR by its authors' Python package; its iteration limit is fixed."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from benchmarks.harness.peers.base import Peer, ladder, rows
from benchmarks.harness.tasks import EPSILON

TOLS = ladder((1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8))


def hold(X, y):
    """LIBLINEAR's problem object: rows as lists of index and value."""
    from liblinear.liblinearutil import problem

    return problem(y, sp.csr_matrix(rows(X, y)[0])), y


def solver(kind):
    """The fit with option -s kind."""

    def fit(data, y, task, lam, rung):
        from liblinear.liblinearutil import parameter, train

        C = (0.5 if kind in (1, 2, 11, 12) else 1.0) / (lam * len(y))  # LIBLINEAR squares without 1/2
        epsilon = EPSILON if task.name == "epsilon_insensitive" else 0.0
        model = train(data, parameter(f"-s {kind} -c {C:.17g} -e {rung.tol:g} -p {epsilon:g} -q"))
        if task.labels == "classes":
            W = np.zeros((model.nr_feature, model.nr_class))
            for k, label in enumerate(model.get_labels()):
                W[:, int(label)] = model.get_decfun(label_idx=k)[0]
            return W
        w = np.array(model.w[: model.nr_feature])
        return w if task.labels == "numbers" or model.get_labels()[0] == 1 else -w

    return fit


def peer(kind, *tasks):
    return Peer(f"LIBLINEAR -s {kind}", "liblinear", tasks, solver(kind), TOLS, hold)


PEERS = (
    peer(0, "logistic"),
    peer(7, "logistic"),
    peer(1, "squared_hinge"),
    peer(2, "squared_hinge"),
    peer(3, "hinge"),
    peer(4, "multiclass_hinge"),
    peer(6, "l1_logistic"),
    peer(11, "squared"),
    peer(12, "squared"),
    peer(13, "epsilon_insensitive", "absolute"),
)
