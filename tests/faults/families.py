"""Two problems of every registered solver, and functions to save and resume its runs."""

import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import riskmin as rm
from riskmin.core.persist import load_arrays
from solver_cases import REGISTERED, Case


@dataclass(frozen=True)
class Family:
    """A solver on a problem that it solves within some steps."""

    case: Case

    def run(self, path=None, **settings):
        """Run to the end; with a path, write a checkpoint after every iteration."""
        save = None if path is None else rm.Checkpoint(path, every=0.0)
        return rm.minimize(
            self.case.objective, self.case.solver, tol=self.case.tol, checkpoint=save, **settings
        )

    def rehearse(self):
        """Run with checkpoints, without failures."""
        with tempfile.TemporaryDirectory() as folder:
            self.run(Path(folder, "run"))

    @cached_property
    def undisturbed(self):
        return self.run()

    def check(self, result):
        """Check for the same certified optimum."""
        whole = self.undisturbed
        assert result.status == whole.status == "converged", result.status
        assert max(result.lower, whole.lower) <= min(result.value, whole.value) * (1 + 1e-12)
        assert abs(result.value - whole.value) <= self.case.tol * whole.value


FAMILIES = {repr(case): Family(case) for cases in REGISTERED.values() for case in (cases[0], cases[-1])}


def rows_of(path):
    """Number of iterations in a checkpoint, which must be complete; 0 if there is none."""
    return len(load_arrays(path, "checkpoint")[0]["trace"]) if path.exists() else 0
