"""Threads that compute items together in compiled code, where they also wait for the next call."""

from __future__ import annotations

import ctypes
import sys
import threading
import weakref
from functools import cache
from queue import SimpleQueue
from typing import Any

import numpy as np

from riskmin._numba import lazy_module
from riskmin.core import NDArray
from riskmin.core.blas_threads import limit_worker_to_one_thread
from riskmin.executors.forks import n_forks

_kernels = lazy_module("shards.team")


@cache
def _yield_address() -> int:
    """Return the address of the function of the system that lets another thread run."""
    if sys.platform == "win32":
        function = ctypes.WinDLL("kernel32").SwitchToThread
    else:
        function = ctypes.CDLL(None).sched_yield
    return ctypes.cast(function, ctypes.c_void_p).value or 0


class CompiledTeam:
    """Threads beside the calling one: they start with the first call, and end with the team.

    A call costs no wake-up and no handover of the interpreter's lock as long as the threads are awake: for
    about a millisecond after the last one.
    """

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._begin()

    def _begin(self) -> None:
        """Have no threads: at first, and in a child process, which has none of those of its parent."""
        self.n_forks, self.n_started = n_forks(), 0
        self.lock = threading.Lock()
        self.board: NDArray = _kernels().new_board()
        self.memory = np.empty((self.n_threads + 1, 0))
        """A row for each thread, which calls use as they like: new memory would take longer than its use."""
        self.wake: SimpleQueue[bool] = SimpleQueue()
        # without this, threads would accumulate over many fits
        weakref.finalize(self, self.wake.put, False)

    def call(self, loop: Any, progress: NDArray, args: tuple[Any, ...], memory: int, n_threads: int) -> bool:
        """Call loop(progress, memory, *args) on several threads; return False if they are busy."""
        if self.n_forks != n_forks():
            self._begin()
        if self.lock.locked():
            return False
        # another call may be faster: then this one waits; Ctrl-C leaves the lock open
        with self.lock:
            if self.memory.shape[1] < memory:
                # 8 more numbers, so that two threads share no cache line
                self.memory = np.empty((self.n_threads + 1, memory + 8))
            n_threads = min(n_threads, self.n_threads + 1)  # each has a row of memory
            self._wake(n_threads - 1)
            call = _kernels().on_threads(loop)
            if call(self.board, _yield_address(), 0, n_threads, (progress, self.memory, args)):
                raise RuntimeError(f"{loop.__name__} failed in a thread")
        return True

    def _wake(self, n_threads: int) -> None:
        """Start threads that have not started yet, and wake those that sleep."""
        while self.n_started < n_threads:
            # counted first: two threads of one number would write to the same memory
            self.n_started += 1
            args = self.board, self.wake, self.n_started, _yield_address()
            # a daemon: it only waits when the program ends
            name = f"riskmin_compiled_{self.n_started}"
            try:
                threading.Thread(target=_take_part, args=args, name=name, daemon=True).start()
            except RuntimeError:  # the system has no more threads: those that run compute all items
                self.n_started = self.n_threads
        if n_asleep := int(self.board[_kernels().N_ASLEEP]):
            for _ in range(n_asleep):
                self.wake.put(True)
            # after that: Ctrl-C in between wakes a thread twice, while one counted as awake would sleep on
            _kernels().count_awake(self.board, n_asleep)


def _take_part(board: NDArray, wake: SimpleQueue[bool], thread: int, yield_address: int) -> None:
    """Take part in calls, and sleep when none comes, until the team ends; the loop of a thread."""
    limit_worker_to_one_thread()
    while True:
        _kernels().take_part(board, thread, yield_address)
        if not wake.get():
            wake.put(False)  # for the next thread
            return
