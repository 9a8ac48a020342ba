"""Loops over items on several threads that wait for work in compiled code, without the interpreter's lock.

The calling thread writes a job to the board: the address of a function and its arguments. Threads that spin
see it within a microsecond; to wake a thread, or to hand it the interpreter's lock, takes 20 to 100 times as
long. The number of a job is even while threads may join; the calling thread makes it odd when no item is
left, and waits for those that have joined, so that nobody uses the arguments of a job that has ended.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from riskmin._numba.compile_cache import import_generated, njit
from riskmin._numba.shards.items import fetch_add, load

JOB, N_JOINED, N_ASLEEP, LOOP, N_THREADS, N_ERRORS, ARGUMENTS, LENGTH = 0, 8, 16, 24, 25, 26, 32, 1024
"""Places on the board: the number of the job, the threads that have joined and those that sleep, the address
of the function, the number of threads for the job, that of errors, and the arguments."""
SPINS, YIELDS = 64, 2000
"""A thread without a job reads the number so many times, yields to others, and sleeps after so many yields:
about a millisecond, the time between two calls of a fit."""

SOURCE = '''"""A loop over items on several threads."""
from {package}.{module} import {name} as loop
from {package}.compile_cache import njit
from {package}.shards.team import close, open_job, write_job


@njit()
def on_thread(thread, arguments):
    progress, memory, others = arguments
    loop(progress, memory[thread], *others)


@njit()
def call(board, sched_yield, thread, n_threads, arguments):
    write_job(board, on_thread, arguments)
    open_job(board, n_threads)
    on_thread(thread, arguments)
    return close(board, sched_yield)
'''


def new_board() -> Any:
    """Return a board without a job."""
    board = np.zeros(LENGTH, np.int64)
    board[JOB] = 1
    return board


@cache
def on_threads(loop: Any) -> Any:
    """Return the function (board, sched_yield, 0, n_threads, arguments) that calls a loop on several threads.

    The arguments are the progress, one row of memory per thread, and a tuple of all others.
    """
    package = "riskmin._numba"
    module = loop.__module__.removeprefix(f"{package}.")
    source = SOURCE.format(package=package, module=module, name=loop.__name__)
    return import_generated(source, "shared").call


# ---------------------------------------------------------------- the calling thread
def _write_job(typing: Any, board: Any, function: Any, arguments: Any) -> Any:
    signature = function.get_call_type(typing, (types.int64, arguments), {})

    def codegen(context: Any, builder: Any, _: Any, args: Any) -> Any:
        data = context.make_array(board)(context, builder, args[0]).data
        size = context.get_abi_sizeof(args[2].type)
        if size > 8 * (LENGTH - ARGUMENTS):
            raise ValueError(f"the arguments of the loop take {size} bytes, more than the board has")
        # a C function that loads the arguments and calls the loop
        ir: Any = cgutils.ir  # type: ignore[attr-defined]
        i64, pointer = ir.IntType(64), args[2].type.as_pointer()
        name = builder.module.get_unique_name(f"{builder.function.name}.job")
        job = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [i64, i64]), name)
        job.linkage = "internal"
        inside = ir.IRBuilder(job.append_basic_block())
        loaded = inside.load(inside.inttoptr(job.args[0], pointer))
        compiled = function.dispatcher.overloads[signature.args]
        context.add_linking_libs([compiled.library])
        operands = [job.args[1], loaded]
        status, _result = context.call_internal_no_propagate(inside, compiled.fndesc, signature, operands)
        errors = inside.sub(job.args[0], i64(8 * (ARGUMENTS - N_ERRORS)))
        n_errors = inside.zext(status.is_error, i64)
        inside.atomic_rmw("add", inside.inttoptr(errors, i64.as_pointer()), n_errors, "seq_cst")
        inside.ret_void()
        builder.store(args[2], builder.bitcast(builder.gep(data, [i64(ARGUMENTS)]), pointer))
        builder.store(builder.ptrtoint(job, i64), builder.gep(data, [i64(LOOP)]))
        return context.get_dummy_value()

    return types.void(board, function, arguments), codegen


write_job: Any = intrinsic(_write_job)
"""Write the address of a function (thread, arguments) and its arguments to the board."""


@njit()
def open_job(board: Any, n_threads: int) -> None:
    """Let threads join the job."""
    board[N_THREADS], board[N_ERRORS] = n_threads, 0
    fetch_add(board, JOB, 1)


@njit()
def close(board: Any, sched_yield: int) -> int:
    """Let no other thread join, wait for those that have, and return the number of errors."""
    fetch_add(board, JOB, 1)
    n_spins = 0
    while load(board, N_JOINED) > 0:
        n_spins += 1
        if n_spins % SPINS == 0:
            call_address(sched_yield)
    n_errors: int = load(board, N_ERRORS)
    return n_errors


# ---------------------------------------------------------------- the other threads
def _call_address(typing: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ir: Any = cgutils.ir  # type: ignore[attr-defined]
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


call_address: Any = intrinsic(_call_address)
"""Call the C function without arguments at an address."""


def _call_job(typing: Any, board: Any, thread: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        ir: Any = cgutils.ir  # type: ignore[attr-defined]
        i64, data = ir.IntType(64), context.make_array(signature.args[0])(context, builder, args[0]).data
        function = builder.load(builder.gep(data, [i64(LOOP)]))
        arguments = builder.ptrtoint(builder.gep(data, [i64(ARGUMENTS)]), i64)
        kind = ir.FunctionType(ir.VoidType(), [i64, i64])
        builder.call(builder.inttoptr(function, kind.as_pointer()), [arguments, args[1]])
        return context.get_dummy_value()

    return types.void(board, types.int64), codegen


call_job: Any = intrinsic(_call_job)
"""Call the function on the board with its arguments."""


@njit()
def take_part(board: Any, thread: int, sched_yield: int) -> None:
    """Join one job after the other, until none comes for a while."""
    last, n_yields, n_spins = 0, 0, 0
    while n_yields < YIELDS:
        job = load(board, JOB)
        if job % 2 == 0 and job != last:
            fetch_add(board, N_JOINED, 1)
            # the job has not ended since, and will not end while this thread takes part
            if load(board, JOB) == job and thread < board[N_THREADS]:
                call_job(board, thread)
            fetch_add(board, N_JOINED, -1)
            last, n_yields, n_spins = job, 0, 0
        else:
            n_spins += 1
            if n_spins == SPINS:
                n_spins = 0
                n_yields += 1
                call_address(sched_yield)
    fetch_add(board, N_ASLEEP, 1)


@njit()
def count_awake(board: Any, n: int) -> None:
    """Count so many threads as awake, which the caller has woken."""
    fetch_add(board, N_ASLEEP, -n)
