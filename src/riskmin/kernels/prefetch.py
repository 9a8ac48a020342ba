"""Asking for memory ahead of its use, which hides what waiting for it costs."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def prefetch(locality: int) -> Any:
    """A function (array, index) for kernels that asks for the cache line of a flat array's entry.

    Locality 3 is into all caches, 2 into all but the first. The index may lie beyond the array's end.
    """

    def ask(typing: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            held = context.make_array(signature.args[0])(context, builder, args[0])
            at = builder.bitcast(builder.gep(held.data, [args[1]]), cgutils.voidptr_t)
            ir, i32 = cgutils.ir, cgutils.int32_t  # type: ignore[attr-defined]
            kind = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
            call = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), kind)
            builder.call(call, [at, i32(0), i32(locality), i32(1)])  # to read, data
            return context.get_dummy_value()

        return types.void(array, index), codegen

    return intrinsic(ask)
