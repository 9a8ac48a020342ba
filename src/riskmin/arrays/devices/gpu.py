"""Matrices on a GPU, of torch or CuPy: products by own kernels, with sums in double precision.

X is used where it is, without a copy. Scores and gradients are float64 whatever the storage of X, so that
certificates are as sound as those of a CPU.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np

from riskmin.arrays.dense import check_weight_count
from riskmin.arrays.devices.foreign import ForeignArray
from riskmin.arrays.namespace import namespace, to_numpy
from riskmin.core import Array, NDArray
from riskmin.core.deadline import check
from riskmin.core.messages import extra_hint

SMALL_BYTES = 2**16
"""Up to so many bytes, the driver copies an array of the host before its transfer begins."""
STORAGE = {"float32": 0, "float64": 1, "bfloat16": 2, "float16": 3}
"""How kernels read entries (see _cuda/dense.cu)."""


def is_on_gpu(a: Any) -> bool:
    """Whether an array of torch or CuPy is in the memory of a CUDA device."""
    from array_api_compat import is_cupy_array, is_torch_array

    return is_cupy_array(a) or (is_torch_array(a) and bool(a.is_cuda))


@cache
def why_no_gpu() -> str:
    """Return why kernels cannot run here, and what to do, in one sentence; empty if they can."""
    try:
        import cupy
    except ImportError:
        return f"CuPy is not installed: {extra_hint('gpu')}, or use the CPU"
    try:
        if int(cupy.cuda.runtime.getDeviceCount()) > 0:
            return ""
    except Exception as error:  # no driver, or versions that do not fit
        return f"CuPy finds no GPU ({error}): check the driver of the machine, or use the CPU"
    return "CuPy finds no GPU: check the driver of the machine, or use the CPU"


def has_cupy() -> bool:
    """Whether CuPy can be imported and finds a GPU."""
    return not why_no_gpu()


def runs_kernels(a: Any) -> bool:
    """Whether kernels can read an array: it is on a GPU, and CuPy is there."""
    return is_on_gpu(a) and has_cupy()


def free_memory(device: int) -> int | None:
    """Return the free bytes of a device; None if there is no device of this number."""
    import cupy

    if device >= cupy.cuda.runtime.getDeviceCount():
        return None
    with cupy.cuda.Device(device):
        return int(cupy.cuda.runtime.memGetInfo()[0])


def empty_on_gpu(device: int) -> Any:
    """Return an empty array of CuPy on a device."""
    import cupy

    with cupy.cuda.Device(device):
        return cupy.empty(0)


def copied_to_gpu(X: Any, device: int) -> Any:
    """Return an array of NumPy or a sparse matrix of SciPy as one of CuPy on a device."""
    import cupy

    with cupy.cuda.Device(device):
        if isinstance(X, np.ndarray):
            host, copy, owner = np.ascontiguousarray(X), cupy.empty(X.shape, dtype=X.dtype), _Pinned()
            pin(owner, host)  # ten times the bandwidth of pageable memory
            copy.set(host)
            cupy.cuda.get_current_stream().synchronize()  # before the memory is released
            return copy
        import cupyx.scipy.sparse

        rows = X.tocsr()
        parts = [cupy.asarray(a) for a in (rows.data, rows.indices, rows.indptr)]
        return cupyx.scipy.sparse.csr_matrix(tuple(parts), shape=rows.shape)


class _Pinned:
    """Owner of pinned memory for the time of a copy."""


def pin(owner: object, host: NDArray) -> bool:
    """Pin host memory where it is, as long as the owner lives; False if it cannot be, as of mapped files."""
    from cupy.cuda import runtime

    try:
        runtime.hostRegister(host.ctypes.data, host.nbytes, 0)
    except runtime.CUDARuntimeError:
        return False
    weakref.finalize(owner, runtime.hostUnregister, host.ctypes.data)
    return True


@contextlib.contextmanager
def on_stream_of(a: Any) -> Iterator[None]:
    """Use the device of an array and the current stream of its library, within the context, for CuPy."""
    import cupy
    from array_api_compat import is_torch_array

    if not is_torch_array(a):
        with cupy.cuda.Device(a.device.id):
            yield
        return
    import torch

    pointer = torch.cuda.current_stream(a.device).cuda_stream
    stream = cupy.cuda.ExternalStream(pointer) if pointer else cupy.cuda.Stream.null
    with cupy.cuda.Device(a.device.index), stream:
        yield


@contextlib.contextmanager
def tensor_cores(a: Any) -> Iterator[None]:
    """Multiply float32 matrices of torch in the precision tf32 within the context, if they are on a GPU.

    Ten bits of each factor are used, and sums are in float32: only for what no certificate depends on.
    """
    from array_api_compat import is_torch_array

    if not is_torch_array(a) or not a.is_cuda:
        yield
        return
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def as_cupy(a: Any, dtype: Any = np.float64) -> Any:
    """Return an array of any library as one of CuPy on the current device; without a copy if it is there."""
    import cupy
    from array_api_compat import is_torch_array

    if is_torch_array(a):
        a = _shared_memory(a.detach().contiguous()) if a.is_cuda else to_numpy(a)
    # vectors of cached scores are converted in every evaluation of a line search
    if isinstance(a, cupy.ndarray) and a.dtype == dtype and a.flags.c_contiguous:
        return a
    if isinstance(a, cupy.ndarray):
        return cupy.ascontiguousarray(a, dtype=dtype)
    host = np.ascontiguousarray(a, dtype=dtype)
    if host.nbytes > SMALL_BYTES:
        return cupy.asarray(host)
    out = cupy.empty(host.shape, dtype=dtype)
    # the call returns as soon as the driver has a copy of the host's memory; half the time of cupy.asarray
    out.data.copy_from_host_async(host.ctypes.data, host.nbytes, cupy.cuda.get_current_stream())
    return out


def _shared_memory(a: Any) -> Any:
    """Return a contiguous tensor of torch as an array of CuPy; a tenth of the time that DLPack takes."""
    import cupy

    if not a.numel():
        return cupy.from_dlpack(a)
    size, name = a.numel() * a.element_size(), str(a.dtype).rpartition(".")[2]
    memory = cupy.cuda.UnownedMemory(a.data_ptr(), size, a, a.device.index)
    return cupy.ndarray(tuple(a.shape), dtype=name, memptr=cupy.cuda.MemoryPointer(memory, 0))


def from_cupy(a: Any, like: Any) -> Any:
    """Return an array of CuPy in the library of another one on the same device; without a copy."""
    from array_api_compat import is_torch_array

    if not is_torch_array(like):
        return a
    import torch

    return torch.utils.dlpack.from_dlpack(a)


def to_library_of(a: Any, like: Any) -> Any:
    """Return an array of CuPy as one of the library, device and dtype of `like`, which may be NumPy's."""
    if isinstance(like, np.ndarray):
        return a.get()
    return namespace(like).astype(from_cupy(a, like), like.dtype)


def _entries_as_cupy(X: Any) -> Any:
    """Return a 2-d array on a GPU as one of CuPy that shares its memory; bfloat16 as its bits."""
    import cupy
    from array_api_compat import is_torch_array

    if not is_torch_array(X):
        return X
    import torch

    X = X.detach()
    return cupy.from_dlpack(X.view(torch.int16) if X.dtype == torch.bfloat16 else X)


@dataclass(frozen=True)
class GpuDense(ForeignArray):
    """A dense array on a GPU in rows, of float32, float64, bfloat16 or float16."""

    on_gpu = True
    # a launch for each block: longer ones than for a CPU
    COPIED_ENTRIES: ClassVar[int] = 2**26
    DOUBLE_COPY_SHARE: ClassVar[float] = 0.5
    """The share of the free memory that a copy of X in double precision may take."""

    @classmethod
    def accepts(cls, X: Array) -> bool:
        """Whether kernels can read the array: entries of a row are adjacent, and CuPy is there."""
        if not is_on_gpu(X) or str(X.dtype).rpartition(".")[2] not in STORAGE or not has_cupy():
            return False
        entries = X.stride() if hasattr(X, "stride") else tuple(s // X.itemsize for s in X.strides)
        return bool(min(X.shape) > 0 and entries[1] == 1 and entries[0] >= X.shape[1])

    @cached_property
    def kernels(self) -> Any:
        """The kernels of the entries."""
        from riskmin._cuda.kernels import DenseRows

        return DenseRows(_entries_as_cupy(self.X), STORAGE[str(self.X.dtype).rpartition(".")[2]])

    @cached_property
    def _column_blocks(self) -> list[tuple[slice, Any]]:
        """Ranges of columns that a kernel takes at a time, with their kernels: usually one of all columns."""
        from riskmin._cuda.kernels import MAX_COLUMNS

        p = self.shape[1]
        ranges = [slice(j, min(j + MAX_COLUMNS, p)) for j in range(0, p, MAX_COLUMNS)]
        return [(r, self.kernels._replace(X=self.kernels.X[:, r])) for r in ranges]

    @property
    def one_pass(self) -> bool:
        """Whether a row fits into the registers of a block: value and gradient take one read of X."""
        return len(self._column_blocks) == 1

    @cached_property
    def _double(self) -> Array | None:
        """All entries in float64, for products with several columns by cuBLAS; None if they do not fit."""
        import cupy

        with on_stream_of(self.X):
            free = cupy.cuda.runtime.memGetInfo()[0]
        xp, size = namespace(self.X), 8 * self.shape[0] * self.shape[1]
        return xp.astype(self.X, xp.float64) if size <= self.DOUBLE_COPY_SHARE * free else None

    def double_blocks(self, start: int, stop: int) -> Iterator[tuple[int, int, Array]]:
        if self.X.dtype != namespace(self.X).float64 and self._double is not None:
            yield start, stop, self._double[start:stop]
        else:
            yield from super().double_blocks(start, stop)

    def rows(self, start: int, stop: int) -> GpuDense:
        return GpuDense(self.X[start:stop])

    def absolute(self, start: int, stop: int) -> GpuDense:
        return GpuDense(abs(self.X[start:stop]))

    def _part(self, kernels: Any, start: int, stop: int) -> Any:
        return kernels._replace(X=kernels.X[start:stop])

    def scores(self, w: Array, start: int, stop: int) -> Array:
        check_weight_count(w, self.shape[1])
        if w.ndim == 2:
            return super().scores(w, start, stop)
        check()
        with on_stream_of(self.X):
            w = as_cupy(w)
            z = sum(self._part(block, start, stop).scores(w[r]) for r, block in self._column_blocks)
            return from_cupy(z, self.X)

    def pullback(self, dz: Array, start: int, stop: int, out: Array) -> None:
        if dz.ndim == 2:
            super().pullback(dz, start, stop, out)
            return
        check()
        with on_stream_of(self.X):
            dz = as_cupy(dz)
            for r, block in self._column_blocks:
                out[r] += to_library_of(self._part(block, start, stop).pullback(dz), out)

    def hessian_product(self, d: Array, h: Array) -> Array | None:
        """Return X' diag(h) X d in one read of X; None if a row is too long for that."""
        if not self.one_pass:
            return None
        with on_stream_of(self.X):
            return to_library_of(self.kernels.hessian_product(as_cupy(d), as_cupy(h)), d)
