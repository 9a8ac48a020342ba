"""Compile and launch kernels by CuPy: NVRTC compiles for the device, and CuPy caches the code on disk."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from riskmin._cuda.loss_code import loss_source

OPTIONS = "--std=c++17", "--fmad=false"
"""Only where the source has fma are products and sums rounded once: the loss is as in the array code."""
SUMS = 4
"""Sums over rows beside each gradient: value, slope in the shift, minorant offset, sum of |slopes|."""
MAX_COLUMNS = 16384
"""The most columns of a row that a block holds in its registers."""
SHARED_BYTES = 224 * 2**10
"""Shared memory of a block of an H100 or H200, less what kernels declare themselves."""
ROW_THREADS = 256
POINTS = 16
"""Trial points of a line search in one launch."""


def cupy() -> Any:
    """Return the library CuPy, which is imported by the first use of a GPU."""
    import cupy

    return cupy


class LossCode(NamedTuple):
    """A row program, as C and its parameters; and how labels and weights are stored."""

    source: str
    parameters: tuple[float, ...]

    @classmethod
    def from_program(cls, program: Any) -> LossCode:
        """Return the code of a `RowProgram`."""
        return cls(
            loss_source(program.lines, len(program.parameters), program.outputs), program.parameters or (0.0,)
        )


class Rows(NamedTuple):
    """Labels and weights on the device, in as few bytes as hold them exactly."""

    y: Any
    """float32 if that holds them exactly, else float64."""
    c: Any
    """Weights in float64; None if all are the same."""
    c0: float
    """The weight of every row, if all are the same."""

    @classmethod
    def from_arrays(cls, y: Any, c: Any) -> Rows:
        """Return labels and weights of CuPy in float64 as they are stored."""
        xp = cupy()
        y, c = xp.ascontiguousarray(y, dtype=xp.float64), xp.ascontiguousarray(c, dtype=xp.float64)
        short = y.astype(xp.float32)
        exact, equal = xp.stack([(short == y).all(), (c == c[:1]).all()]).get()
        return cls(short if exact else y, None if equal else c, float(c[0]) if equal else 0.0)

    @property
    def macros(self) -> tuple[str, ...]:
        """How the kernels read them."""
        kind = "float" if self.y.dtype == np.float32 else "double"
        return f"-DLABEL={kind}", f"-DWEIGHTED={int(self.c is not None)}"

    @property
    def arguments(self) -> tuple[Any, Any, np.float64]:
        """The arguments of kernels: y, c and c0."""
        return self.y, _pointer(self.c), np.float64(self.c0)


def _pointer(a: Any) -> Any:
    """Return an array as an argument; a null pointer for None."""
    return np.uintp(0) if a is None else a


@cache
def _source(name: str) -> str:
    return (Path(__file__).parent / f"{name}.cu").read_text(encoding="utf-8")


@cache
def _function(name: str, files: tuple[str, ...], code: str, macros: tuple[str, ...], device: int) -> Any:
    """Return a kernel of files that are compiled together, after the code of a loss."""
    text = code + "\n".join(map(_source, files))
    return cupy().RawModule(code=text, options=(*OPTIONS, *macros)).get_function(name)


def compiled(name: str, file: str, code: str, *macros: str) -> Any:
    """Return a kernel of a file, compiled after the code of a loss for the current device."""
    return _function(name, (file,), code, macros, cupy().cuda.runtime.getDevice())


@cache
def n_multiprocessors(device: int) -> int:
    """Return the number of multiprocessors of a device."""
    return int(cupy().cuda.runtime.getDeviceProperties(device)["multiProcessorCount"])


@lru_cache(maxsize=512)
def _resident_blocks(function: Any, threads: int, shared: int) -> int:
    """Return how many blocks run at the same time on the device."""
    # a kernel may use 48 KiB without asking for more, what it declares itself included
    if shared > 32 * 2**10:
        function.max_dynamic_shared_size_bytes = shared
    per_multiprocessor: int = cupy().cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(
        function.kernel.ptr, threads, shared
    )
    return max(per_multiprocessor, 1) * n_multiprocessors(cupy().cuda.runtime.getDevice())


def add_parts(part: Any, count: int, width: int) -> Any:
    """Return the sum of `count` rows of `width` numbers, in a fixed order."""
    out = cupy().empty(width, dtype=np.float64)
    function = compiled("add_parts", "reduce", "")
    function(((width + 31) // 32,), (1024,), (part, np.int32(count), np.int64(width), out))
    return out


# ---------------------------------------------------------------- dense rows
class DenseLayout(NamedTuple):
    """How threads share the rows of a dense X (see dense.cu)."""

    lanes: int
    vector: int
    rows: int
    threads: int
    staged: bool = True
    reconvert: bool = True

    @classmethod
    @cache
    def choose(cls, p: int, ld: int, itemsize: int, address: int, k: int = 1) -> DenseLayout:
        """Return the layout for p columns whose rows are ld entries apart."""
        # vectors of up to 16 bytes, aligned in every row
        vector = gcd(gcd(p, ld), 16 // itemsize, address // itemsize if address % 16 else 16)
        copied = vector * itemsize >= 4  # asynchronous copies are of 4 bytes or more
        if p <= (512 if k == 1 else 256):
            # 8 to 16 entries of a row per thread, whose sums are in its registers
            lanes, entries = 1, 8 if p <= 64 else 16
            while lanes < 32 and lanes * entries < p:
                lanes *= 2
            staged = copied and (p > 256 or p % (lanes * vector) == 0)
            return cls(lanes, vector, max(min(4, lanes) // k, 1), 128, staged, p > 64)
        threads = 64
        while threads < 512 and threads * 8 < p:
            threads *= 2
        # rows of up to 64 KiB together are copied ahead
        together = next((r for r in (8, 4, 2) if r * threads * max(8, p // threads) * itemsize <= 2**16), 1)
        together = together if k == 1 else 4
        # w and the copied rows share the memory of a block
        fits = (8 * k + together * itemsize) * -(-p // (threads * vector)) * threads * vector <= SHARED_BYTES
        return cls(threads, vector, together, threads, copied and fits)


@lru_cache(maxsize=512)
def _dense_function(
    layout: DenseLayout, p: int, k: int, itemsize: int, code: str, macros: tuple[str, ...], device: int
) -> tuple[Any, int, int]:
    """Return the kernel `dense_rows` for a layout, its shared memory, and how many blocks are resident."""
    lanes, vector, together, threads, staged, reconvert = layout
    sizes = {
        "PC": p, "K": k, "L": lanes, "EPV": vector, "RR": together, "TPB": threads,
        "BYTES": vector * itemsize, "STAGED": int(staged), "RECONVERT": int(reconvert),
    }  # fmt: skip
    function = compiled(
        "dense_rows", "dense", code, *(f"-D{name}={size}" for name, size in sizes.items()), *macros
    )
    step = lanes * vector
    padded = (p + step - 1) // step * step
    shared = (k * padded + 1) // 2 * 16 + staged * together * padded * (threads // lanes) * itemsize
    return function, shared, _resident_blocks(function, threads, shared)


def points_at_a_time(p: int) -> int:
    """Return how many w one launch takes, such that their sums fit into registers."""
    return 8 if 256 < p <= 2048 else 4 if 32 <= p <= 2048 else 1


class DenseRows(NamedTuple):
    """A dense matrix on the device: entries in rows, as CuPy stores them or as bits of bfloat16."""

    X: Any
    storage: int
    """0: float32, 1: float64, 2: bfloat16, 3: float16."""

    @property
    def shape(self) -> tuple[int, int]:
        return self.X.shape[0], self.X.shape[1]

    def _launch(
        self, mode: int, W: Any, shift: float, rows: Rows | None, loss: LossCode | None, h: Any, z: Any,
        layout: DenseLayout | None = None,
    ) -> tuple[Any, int]:  # fmt: skip
        """Launch `dense_rows`; return the partial sums and the number of blocks that have some."""
        xp, (n, p), k = cupy(), self.X.shape, 1 if W is None else len(W)
        itemsize = self.X.itemsize
        ld = self.X.strides[0] // itemsize if n > 1 else p
        layout = layout or DenseLayout.choose(p, ld, itemsize, self.X.data.ptr % 16, k)
        labels = ("-DLABEL=float", "-DWEIGHTED=0") if rows is None else rows.macros
        macros = f"-DSTORAGE={self.storage}", f"-DMODE={mode}", f"-DSTORE={int(z is not None)}", *labels
        code, device = "" if loss is None else loss.source, xp.cuda.runtime.getDevice()
        function, shared, resident = _dense_function(layout, p, k, itemsize, code, macros, device)
        threads = layout.threads
        # a warp, or a block, takes `rows` rows of each of its groups at a time
        at_a_time = layout.rows if layout.lanes > 32 else threads // layout.lanes * layout.rows
        blocks = min(resident, (n + at_a_time - 1) // at_a_time)
        part = xp.empty(blocks * k * (p + SUMS) if mode != 1 else 1, dtype=np.float64)
        parameters = xp.zeros(1) if loss is None else _parameters(loss.parameters)
        y, c, c0 = (np.uintp(0), np.uintp(0), np.float64(0)) if rows is None else rows.arguments
        arguments = (
            self.X, np.int64(ld), _pointer(W), np.float64(shift), y, c, c0, parameters,
            _pointer(h), _pointer(z), part, np.int64(n),
        )  # fmt: skip
        function((blocks,), (threads,), arguments, shared_mem=shared)
        return part, blocks

    def value_grad(self, W: Any, shift: float, rows: Rows, loss: LossCode, **options: Any) -> Any:
        """Return, per vector of W (k, p), the gradient and then the sums: k rows of p + SUMS numbers."""
        part, blocks = self._launch(0, W, shift, rows, loss, None, options.pop("z", None), **options)
        width = len(W) * (self.X.shape[1] + SUMS)
        return add_parts(part, blocks, width).reshape(len(W), -1)

    def scores(self, w: Any, **options: Any) -> Any:
        """Return X w in double precision."""
        z = cupy().empty(self.X.shape[0], dtype=np.float64)
        self._launch(1, w[None, :], 0.0, None, None, None, z, **options)
        return z

    def pullback(self, h: Any, **options: Any) -> Any:
        """Return X' h in double precision."""
        part, blocks = self._launch(2, None, 0.0, None, None, h, None, **options)
        return add_parts(part, blocks, self.X.shape[1] + SUMS)[:-SUMS]

    def hessian_product(self, d: Any, h: Any, **options: Any) -> Any:
        """Return X' (h * (X d)) in double precision, in one read of X."""
        part, blocks = self._launch(3, d[None, :], 0.0, None, None, h, None, **options)
        return add_parts(part, blocks, self.X.shape[1] + SUMS)[:-SUMS]


@cache
def _parameters(values: tuple[float, ...]) -> Any:
    return cupy().asarray(values, dtype=np.float64)


# ---------------------------------------------------------------- losses of cached scores
def _row_function(name: str, rows: Rows, loss: LossCode) -> Any:
    macros = *rows.macros, f"-DTPB={ROW_THREADS}", f"-DPOINTS={POINTS}"
    return compiled(name, "rows", loss.source, *macros)


def _sum_rows(name: str, width: int, n: int, rows: Rows, loss: LossCode, before: Sequence[Any],
              between: Sequence[Any] = ()) -> Any:  # fmt: skip
    """Launch a kernel of rows.cu and return its sums."""
    function = _row_function(name, rows, loss)
    blocks = max(min(_resident_blocks(function, ROW_THREADS, 0), (n + ROW_THREADS - 1) // ROW_THREADS), 1)
    part = cupy().empty(blocks * width, dtype=np.float64)
    arguments = (*before, *rows.arguments, _parameters(loss.parameters), *between, part, np.int64(n))
    function((blocks,), (ROW_THREADS,), arguments)
    return add_parts(part, blocks, width)


def line_sums(z: Any, dz: Any, t: float, b: float, rows: Rows, loss: LossCode) -> Any:
    """Return the loss at z + t dz + b and its derivatives, in the slots of `_numba.traced`."""
    return _sum_rows("line_sums", 8, len(z), rows, loss, (z, _pointer(dz), np.float64(t), np.float64(b)))


def many_points(z: Any, dz: Any, t: Any, b: float, rows: Rows, loss: LossCode) -> Any:
    """Return the loss and its slope in t at z + t_j dz + b for up to 16 numbers t_j: of shape (16, 2)."""
    sums = _sum_rows("many_points", 2 * POINTS, len(z), rows, loss, (z, dz, t, np.float64(b)))
    return sums.reshape(POINTS, 2)


def mixed_tangent(z: Any, dz: Any, t: float, mix: Any, rows: Rows, loss: LossCode) -> tuple[Any, Any]:
    """Return the mixture of slopes at z + t dz + b_j, and its four sums; mix holds all b_j, then weights."""
    slopes = cupy().empty(len(z), dtype=np.float64)
    before = z, _pointer(dz), np.float64(t), mix, np.int32(len(mix) // 2)
    return slopes, _sum_rows("mixed_tangent", 4, len(z), rows, loss, before, (slopes,))


def score_cut(z: Any, b: float, rows: Rows, loss: LossCode) -> tuple[Any, Any, Any]:
    """Return slopes and second derivatives at z + b, and the sums of the cut (see `_numba.newton.slots`)."""
    slopes, curvatures = cupy().empty((2, len(z)), dtype=np.float64)
    outputs = slopes, curvatures
    return *outputs, _sum_rows("score_cut", 10, len(z), rows, loss, (z, np.float64(b)), outputs)
