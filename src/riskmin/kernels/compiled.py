"""How kernels are compiled, and where what was compiled is kept: one decorator for all of them.

Numba keeps compiled code in a folder that it can write to: that of NUMBA_CACHE_DIR, the one beside the
source, or one in the user's home. Where it finds none it raises, and nothing could be fitted. Here code is
also read from a folder that was filled before and can only be read, as in an image; and where there is none
at all, kernels are compiled anew in each process, which is said once.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching
from numba.core.options import DefaultOptions

HERE = Path(__file__).parent
ADVICE = (
    "there is no writable folder for compiled code, so each new process compiles it again, which takes "
    "seconds: set NUMBA_CACHE_DIR to a writable folder or run `riskmin warmup` when the image is built"
)

F = TypeVar("F", bound=Callable[..., Any])


def njit(*, allocates: bool = False, **options: Any) -> Callable[[F], F]:
    """Compile a function when it is first called, release the interpreter's lock, and keep the code.

    Everyone who runs something for the first time waits for the compiler, so it is given little. Division by
    zero gives infinity or NaN: checks of divisors are more code, and keep loops from being vectorized.
    References to arrays are not counted, so that none can be allocated: callers give room, but for the few
    functions that are said to allocate.
    """
    shared: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    sparing = {"no_cfunc_wrapper": True, "_nrt": allocates}  # Numba does not promise to have these
    shared |= {name: value for name, value in sparing.items() if hasattr(DefaultOptions, name)}

    def compiled(function: F) -> F:
        kernel: Any = numba.njit(**(shared | options))(function)
        if kernel is not function:  # which it is with NUMBA_DISABLE_JIT=1
            kernel._cache = Kept(function)
        return kernel  # type: ignore[no-any-return]

    return compiled


# ---------------------------------------------------------------- folders
@cache
def _stamp(path: Path) -> bytes:
    """A digest of a file and of the kernels that it imports: they are compiled into its own.

    Numba's own is of the file alone: after a change in another file it would go on with old code.
    """
    text = path.read_bytes()
    digest = hashlib.sha256(text)
    for name in re.findall(r"^from riskmin\.kernels\.(\w+) import", text.decode(), re.MULTILINE):
        digest.update(_stamp(HERE / f"{name}.py"))
    return digest.digest()


@cache
def _is_filled(folder: Path) -> bool:
    return any(folder.glob("*.nbi"))


@cache
def _locators(kind: Any) -> tuple[Any, Any]:
    """One of Numba's kinds of folders, stamped by `_stamp`; and the same to be read only, if it is filled."""

    class Written(kind):  # type: ignore[misc]
        def get_source_stamp(self) -> Any:
            path = Path(self._py_file)
            return _stamp(path) if path.exists() else super().get_source_stamp()

    class Read(Written):
        def ensure_cache_path(self) -> None:
            if not _is_filled(Path(self.get_cache_path())):
                raise FileNotFoundError(self.get_cache_path())

    return Written, Read


class _Impl(caching.CompileResultCacheImpl):
    """Looks for a folder: the one that was asked for, one to write to, one to read."""

    def __init__(self, function: Callable[..., Any]) -> None:
        asked, *others = (_locators(kind) for kind in caching.CompileResultCacheImpl._locator_classes)
        self._locator_classes = [*asked, *(pair[0] for pair in others), *(pair[1] for pair in others)]
        super().__init__(function)  # type: ignore[no-untyped-call]


class _Files(caching.FunctionCache):
    _impl_class = _Impl


class Kept:
    """Where a kernel's compiled code is kept: what Numba asks before it compiles, and tells afterwards.

    The folder is looked for when a kernel is first called, not when it is imported.
    """

    said = False
    made = 0
    """How often something was compiled in this process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @cached_property
    def files(self) -> Any:
        try:
            return _Files(self.function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # no folder
            return caching.NullCache()

    @property
    def cache_path(self) -> str | None:
        path: str | None = self.files.cache_path
        return path

    def load_overload(self, signature: Any, context: Any) -> Any:
        """The code for these types, if it is there and can be read."""
        try:
            return self.files.load_overload(signature, context)
        except OSError:
            return None

    def save_overload(self, signature: Any, code: Any) -> None:
        """Keep the code for these types; say that this cannot be done."""
        Kept.made += 1
        try:
            self.files.save_overload(signature, code)
            if self.cache_path is not None:
                return
        except OSError:  # the folder can only be read, or the disk is full
            self.files = caching.NullCache()
        if not Kept.said:
            Kept.said = True
            warnings.warn(ADVICE, RuntimeWarning, stacklevel=2)

    def flush(self) -> None:
        """Forget all code."""
        self.files.flush()


def folder() -> str | None:
    """Where compiled code is kept, if anywhere."""
    return Kept(njit).cache_path
