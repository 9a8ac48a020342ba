"""Novelty detection over several data owners: each keeps its rows and sends gradients and one score per row.

python examples/novelty.py [--data FOLDER]      (FOLDER holds odd_shuttle.npz, with arrays X and y)
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

import riskmin

FEATURES, OWNERS = 200, 4


@dataclass(frozen=True)
class Owner:
    """Rows in a file of their owner. Only this small object is sent to the process that reads them.

    `read` turns the rows into random features, whose inner products approximate a Gaussian kernel; all
    owners draw the same features, from the same seed.
    """

    file: Path
    rows: int
    center: tuple[float, ...]
    scale: tuple[float, ...]

    sparse = False

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, FEATURES

    @property
    def nnz(self) -> int:
        return self.rows * FEATURES

    def read(self):
        return features((np.load(self.file) - self.center) / self.scale)


def features(X):
    rng = np.random.default_rng(7)
    p = X.shape[1]
    frequencies, phases = rng.standard_normal((p, FEATURES)) / p**0.5, rng.uniform(0, 2 * np.pi, FEATURES)
    return np.cos(X @ frequencies + phases) * (2 / FEATURES) ** 0.5


def generated():
    """Normal rows of four modes, one per owner; and test rows, of which a tenth belong to no mode."""
    rng = np.random.default_rng(0)
    modes = 3 * rng.standard_normal((OWNERS, 8))
    owned = [mode + rng.standard_normal((1500, 8)) for mode in modes]
    usual = modes[rng.integers(OWNERS, size=900)] + rng.standard_normal((900, 8))
    odd = 3 * rng.standard_normal((100, 8)) + rng.standard_normal((100, 8))
    return owned, np.concatenate([usual, odd]), np.repeat([0, 1], [900, 100])


def shuttle(folder):
    """Normal rows of the shuttle, sorted by the first column so that owners differ; the rest is new."""
    with np.load(folder / "odd_shuttle.npz") as file:
        X, odd = file["X"].astype(float), file["y"].ravel() > 0
    rng = np.random.default_rng(0)
    train = ~odd & (rng.random(len(X)) < 0.5)
    rows = X[train][np.argsort(X[train, 0], kind="stable")]
    return np.array_split(rows, OWNERS), X[~train], odd[~train].astype(int)


def scale(owned):
    """Means and standard deviations of the columns: each owner sends two sums per column."""
    n = sum(map(len, owned))
    mean = sum(rows.sum(axis=0) for rows in owned) / n
    square = sum(((rows - mean) ** 2).sum(axis=0) for rows in owned) / n
    return tuple(mean.tolist()), tuple(np.sqrt(square).tolist())


def main(folder=None) -> None:
    owned, X, odd = generated() if folder is None else shuttle(folder)
    center, width = scale(owned)
    new = features((X - center) / width)
    with tempfile.TemporaryDirectory() as directory:
        parts = []
        for k, rows in enumerate(owned):
            file = Path(directory, f"owner {k + 1}.npy")
            np.save(file, rows)
            parts.append(Owner(file, len(rows), center, width))
        together = riskmin.PartitionedMatrix(parts, executor=riskmin.Processes(n_workers=2))
        # Bundle needs values and gradients only; Newton's method, the default, would fetch some rows
        model = riskmin.NoveltyDetector(alpha=1e-3, contamination=0.02, solver="bundle").fit(together)
        print(
            f"{len(together)} rows of {OWNERS} owners: {model.lower_bound_:.6f} <= min J <= "
            f"{model.objective_:.6f} ({model.result_.solver})"
        )
        report("all owners", model, new, odd)
        for part in parts:
            single = riskmin.NoveltyDetector(alpha=1e-3, contamination=0.02).fit(part.read())
            report(part.name + " only", single, new, odd)


def report(name, model, new, odd):
    area = roc_auc_score(odd, -model.score_samples(new))
    alarms = model.predict(new) == -1
    print(
        f"{name:13}  gap {model.gap_:.1e}, ROC area {area:.3f}, true positive rate "
        f"{alarms[odd == 1].mean():.0%}, false positive rate {alarms[odd == 0].mean():.0%}"
    )


if __name__ == "__main__":
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data", type=Path, help="folder with odd_shuttle.npz")
    main(options.parse_args().data)
