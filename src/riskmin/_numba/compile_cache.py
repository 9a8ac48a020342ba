"""The decorator that compiles every Numba kernel, and the on-disk cache of compiled code.

Numba stores compiled code in the first writable folder among NUMBA_CACHE_DIR, the folder beside the source
and a folder in the user's home; if none is writable, it raises an error, and no fit could run. This module
handles two more cases: a read-only folder that was filled earlier (for example when a container image was
built) is read, and without any folder the kernels are compiled in each process, with one warning.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
import warnings
from collections.abc import Callable
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core import caching
from numba.core.options import DefaultOptions

KERNEL_FOLDER = Path(__file__).parent
NO_CACHE_FOLDER_WARNING = (
    "there is no writable folder for compiled code, so each new process compiles it again, which takes "
    "seconds: set NUMBA_CACHE_DIR to a writable folder or run `riskmin warmup` when the image is built"
)

F = TypeVar("F", bound=Callable[..., Any])


def private_options(**options: Any) -> dict[str, Any]:
    """Return those of Numba's private options that are there: a later Numba may drop them."""
    return {name: value for name, value in options.items() if hasattr(DefaultOptions, name)}


def njit(*, allocates: bool = False, **options: Any) -> Callable[[F], F]:
    """Compile a function at its first call, release the interpreter's lock, and cache the code.

    Compile time delays every first use, so options keep the generated code small. Division by zero gives
    infinity or NaN (``error_model="numpy"``): checks of divisors add code and prevent vectorization.
    Reference counting is off, so kernels cannot allocate arrays: callers pass workspaces. The few functions
    that must allocate set ``allocates=True``.
    """
    all_options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    all_options |= private_options(no_cfunc_wrapper=True, _nrt=allocates)

    def compiled(function: F) -> F:
        kernel: Any = numba.njit(**(all_options | options))(function)
        if kernel is not function:  # with NUMBA_DISABLE_JIT=1 it is the function itself
            # Numba's own cache would raise without a writable folder
            kernel._cache = KernelCache(function)
        return kernel  # type: ignore[no-any-return]

    return compiled


# ---------------------------------------------------------------- cache folders
def import_generated(source: str, kind: str) -> Any:
    """Return generated source code as a module, whose compiled functions are cached as those of files are.

    The source stays in memory. Its digest is the name of the module and the stamp of the cached code.
    """
    name = f"{kind}_{hashlib.sha256(source.encode()).hexdigest()[:24]}"
    spec = importlib.util.spec_from_loader(name, loader=None)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    module.__dict__["__source__"] = source
    exec(compile(source, f"<{name}>", "exec"), module.__dict__)
    sys.modules[name] = module  # Numba's cache pickles names of modules
    return module


@cache
def source_digest(source: Path | str, kernels: Path = KERNEL_FOLDER) -> bytes:
    """Return a digest of a kernel file or of generated source, and of the kernel files that it imports.

    Imported kernels are inlined into the compiled code. Numba's own stamp covers one file only, so a change
    in an imported file would leave stale code in use.
    """
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    digest = hashlib.sha256(text.encode())
    # imports of kernel files have one form, at the start of a line
    for name in re.findall(r"^from riskmin\._numba\.([\w.]+) import", text, re.MULTILINE):
        digest.update(source_digest(kernels / f"{name.replace('.', '/')}.py", kernels))
    return digest.digest()


@cache
def _has_cached_code(folder: Path) -> bool:
    """Whether the folder holds an index file of Numba's cache."""
    return any(folder.glob("*.nbi"))


@cache
def _locator_variants(kind: Any) -> tuple[Any, Any]:
    """Return two variants of a Numba cache locator: writable, and read-only if the folder is filled."""

    class WritableLocator(kind):  # type: ignore[misc]
        source: str | None

        @classmethod
        def from_function(cls, function: Callable[..., Any], path: str) -> Any:
            # generated code has no file: its compiled code is stored beside the code of this module
            source = function.__globals__.get("__source__")
            locator = super().from_function(function, path if source is None else __file__)
            if locator is not None:
                locator.source = source
            return locator

        def get_source_stamp(self) -> Any:
            if self.source is not None:
                return source_digest(self.source)
            path = Path(self._py_file)
            return source_digest(path) if path.exists() else super().get_source_stamp()

    # a read-only folder is used only if it holds compiled code
    class ReadOnlyLocator(WritableLocator):
        def ensure_cache_path(self) -> None:
            if not _has_cached_code(Path(self.get_cache_path())):
                raise FileNotFoundError(self.get_cache_path())

    return WritableLocator, ReadOnlyLocator


class _CacheImpl(caching.CompileResultCacheImpl):
    """Cache implementation with the locator order: NUMBA_CACHE_DIR, writable folders, read-only folders."""

    def __init__(self, function: Callable[..., Any]) -> None:
        # Numba lists the locator of NUMBA_CACHE_DIR first; both of its variants come before all others
        from_environment, *default_folders = (
            _locator_variants(kind) for kind in caching.CompileResultCacheImpl._locator_classes
        )
        self._locator_classes = [
            *from_environment,
            *(pair[0] for pair in default_folders),
            *(pair[1] for pair in default_folders),
        ]
        super().__init__(function)  # type: ignore[no-untyped-call]

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        """Return stored code as a function, with the allocator that it is linked to initialized.

        Code that allocates names functions of the allocator; this includes a kernel that calls one that does.
        """
        _, _, (machine_code, _) = payload[0]
        if b"NRT_" in machine_code:
            target_context.refresh()  # initializes the allocator, with Numba's tables
        return super().rebuild(target_context, payload)  # type: ignore[no-untyped-call]


class _KernelFunctionCache(caching.FunctionCache):
    """Numba's function cache, with the locators of this module."""

    _impl_class = _CacheImpl

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code without initializing Numba's tables of types and operations.

        Only compiling needs them, and it initializes them itself; it takes half as long as importing Numba.
        """
        with self._guard_against_spurious_io_errors():
            return self._load_overload(sig, target_context)  # type: ignore[no-untyped-call]


class KernelCache:
    """On-disk cache of one kernel: Numba calls `load_overload` before and `save_overload` after compiling.

    The folder is searched at the kernel's first call, not at import.
    """

    warned = False
    n_compiled = 0
    """Number of compilations in this process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    @cached_property
    def function_cache(self) -> Any:
        try:
            return _KernelFunctionCache(self.function)  # type: ignore[no-untyped-call]
        except RuntimeError:  # no folder
            return caching.NullCache()

    @property
    def cache_path(self) -> str | None:
        path: str | None = self.function_cache.cache_path
        return path

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the cached code for these argument types, or None if there is none that can be read."""
        try:
            return self.function_cache.load_overload(signature, context)
        except OSError:
            return None

    def save_overload(self, signature: Any, code: Any) -> None:
        """Store the code for these argument types; warn once per process if no folder is writable."""
        KernelCache.n_compiled += 1
        try:
            self.function_cache.save_overload(signature, code)
            if self.cache_path is not None:
                return
        except OSError:  # the folder is read-only, or the disk is full
            self.function_cache = caching.NullCache()
        # one warning per process
        if not KernelCache.warned:
            KernelCache.warned = True
            warnings.warn(NO_CACHE_FOLDER_WARNING, RuntimeWarning, stacklevel=2)

    def flush(self) -> None:
        """Remove all cached code of this kernel."""
        self.function_cache.flush()


def cache_folder() -> str | None:
    """Return the folder of compiled code, or None if there is none."""
    return KernelCache(njit).cache_path
