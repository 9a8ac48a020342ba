"""Threads that run one function together: woken with few operations under the interpreter's lock."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cached_property
from queue import SimpleQueue

from riskmin.core.blas_threads import limit_worker_to_one_thread
from riskmin.core.deadline import LIMIT_POLL_SECONDS
from riskmin.executors.compiled_team import CompiledTeam
from riskmin.executors.forks import n_forks


class JointCall:
    """A call of one function by the thread that made it and by those that join in time.

    A thread that wakes up when the first one is done has nothing left to do, and is not waited for.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.lock, self.all_done = threading.Lock(), threading.Lock()
        self.n_running, self.closed = 0, False
        self.all_done.acquire()

    def join(self) -> None:
        """Run the function in another thread, unless the call is closed; the function must not raise."""
        with self.lock:
            if self.closed:
                return
            self.n_running += 1
        self.work()
        with self.lock:
            self.n_running -= 1
            last = self.closed and not self.n_running
        if last:
            self.all_done.release()

    def close(self) -> None:
        """Let no other thread join, and wait for those that have.

        The wait is in short intervals: Python runs the handler of a signal that the system delivered to
        another thread only between them.
        """
        with self.lock:
            self.closed = True
            if not self.n_running:
                return
        while not self.all_done.acquire(timeout=LIMIT_POLL_SECONDS):
            pass
        self.all_done.release()  # a second wait, after Ctrl-C during the first, ends at once


class Team:
    """Threads that wait for calls to join; they start with the first call and end with the team."""

    def __init__(self, n_threads: int) -> None:
        self.n_threads = n_threads
        self._begin()

    def _begin(self) -> None:
        """Have no threads: at first, and in a child process, which has none of those of its parent."""
        self.n_forks, self.n_started, self.lock = n_forks(), 0, threading.Lock()
        self.calls: SimpleQueue[JointCall | None] = SimpleQueue()
        # without this, threads would accumulate over many fits
        weakref.finalize(self, self.calls.put, None)

    @cached_property
    def compiled(self) -> CompiledTeam:
        """As many other threads, for calls of compiled code."""
        return CompiledTeam(self.n_threads)

    def invite(self, call: JointCall, n_threads: int) -> None:
        """Wake up some threads for a call."""
        if self.n_forks != n_forks():
            self._begin()
        if self.n_started < n_threads:
            self._start(n_threads)
        for _ in range(n_threads):
            self.calls.put(call)

    def _start(self, n_threads: int) -> None:
        """Start threads up to a number."""
        with self.lock:
            while self.n_started < n_threads:
                self.n_started += 1
                name = f"riskmin_{self.n_started}"
                # a daemon: it only waits when the program ends
                thread = threading.Thread(target=_take_part, args=(self.calls,), name=name, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the system has no more threads: those that run make all calls
                    self.n_started = self.n_threads


def _take_part(calls: SimpleQueue[JointCall | None]) -> None:
    """Join one call after the other, until None comes; the loop of a thread."""
    limit_worker_to_one_thread()
    while True:
        call = calls.get()
        if call is None:
            calls.put(None)  # for the next thread
            return
        call.join()
        del call  # what the function refers to is not kept until the next call
