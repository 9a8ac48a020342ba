"""The C code of traced losses, compiled by the compiler of this machine, against their array code."""

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

import riskmin as rm
from helpers import TRACED_LOSSES
from riskmin._cuda.loss_code import loss_source
from riskmin.losses.base import as_loss
from riskmin.problem.compiled.tracing import trace_loss, trial_scores


class Rounded:
    """A user's own loss with every kind of expression: powers, comparisons, choices, rounding."""

    def __repr__(self):
        return "Rounded()"

    smooth = False

    def value_grad(self, z, y, c):
        xp = np
        r = xp.where((z > 0.25) & ~(y < -0.5) | xp.isinf(z), z - y, xp.floor(z) * 0.0 + (z - y))
        s = xp.abs(r) ** 1.7 + xp.expm1(-xp.abs(r)) + xp.sqrt(xp.abs(z)) - xp.tanh(z) * (r >= 0)
        return c @ s, c * xp.sign(r) * 3.5


LOSSES = [*TRACED_LOSSES, as_loss(Rounded())]
LOOP = """
extern "C" void {name}(
    long n, const double* z, const double* y, const double* c, const double* k, double* out)
{{
  for (long i = 0; i < n; i++)
    {name}_row(z[i], y[i], c[i], k, out[4 * i], out[4 * i + 1], out[4 * i + 2], out[4 * i + 3]);
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        pytest.skip("no compiler of C++ on this machine")
    folder, text = tmp_path_factory.mktemp("losses"), "#include <cmath>\nusing namespace std;\n"
    for j, loss in enumerate(LOSSES):
        program = trace_loss(loss).second
        row = loss_source(program.lines, len(program.parameters), program.outputs, prefix="static")
        text += row.replace("row_loss", f"loss{j}_row") + LOOP.format(name=f"loss{j}")
    (folder / "losses.cc").write_text(text, encoding="utf-8")
    options = ["-O1", "-shared", "-fPIC", "-ffp-contract=off"]
    subprocess.run(
        [compiler, *options, str(folder / "losses.cc"), "-o", str(folder / "losses.so")], check=True
    )
    return ctypes.CDLL(str(folder / "losses.so"))


@pytest.mark.slow
@pytest.mark.parametrize("j", range(len(LOSSES)), ids=lambda j: repr(LOSSES[j]))
def test_c_code_is_the_array_code(library, j):
    loss, rng = LOSSES[j], np.random.default_rng(1)
    n = 600
    y = np.sign(rng.standard_normal(n)) if loss.task != "regression" else rng.poisson(2.0, n).astype(float)
    y = y + 0.5 * isinstance(loss, rm.Gamma)  # which takes no zeros
    z, c = trial_scores(y), rng.uniform(0, 1, n)
    out, program = np.empty((n, 4)), trace_loss(loss).second
    arrays = z, y, c, np.array(program.parameters or (0.0,)), out
    double = ctypes.POINTER(ctypes.c_double)
    getattr(library, f"loss{j}")(ctypes.c_long(n), *(a.ctypes.data_as(double) for a in arrays))
    value, g, offset = loss.offset_tangent(z, y, c)
    h = loss.hessian(z, y, c).diagonal if loss.smooth and loss.has_hessian else np.zeros(n)
    np.testing.assert_allclose(out[:, 1], g, rtol=4e-15, atol=2e-15 if loss == rm.Poisson() else 1e-300)
    np.testing.assert_allclose(out[:, 3], h, rtol=1e-14, atol=1e-300)
    np.testing.assert_allclose(out[:, 0].sum(), value, rtol=1e-12)
    np.testing.assert_allclose(out[:, 2].sum(), offset, rtol=1e-12, atol=1e-15)
