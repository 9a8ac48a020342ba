"""Memory prefetching for kernels: hides the latency of cache misses."""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def prefetch(locality: int) -> Any:
    """Return an intrinsic (array, index) that prefetches the cache line of an entry of a 1-d array.

    locality 3 loads into all cache levels, 2 into all but the first. The index may lie beyond the array's
    end.
    """

    def prefetch_entry(typing: Any, array: Any, index: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            struct = context.make_array(signature.args[0])(context, builder, args[0])
            # address of array[index]; LLVM's prefetch never faults, so it may lie outside
            address = builder.bitcast(builder.gep(struct.data, [args[1]]), cgutils.voidptr_t)
            ir, i32 = cgutils.ir, cgutils.int32_t  # type: ignore[attr-defined]
            function_type = ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, i32, i32, i32])
            call = builder.module.declare_intrinsic("llvm.prefetch", (cgutils.voidptr_t,), function_type)
            # operands: address, 0 = read, locality, 1 = data cache
            builder.call(call, [address, i32(0), i32(locality), i32(1)])
            return context.get_dummy_value()

        return types.void(array, index), codegen

    return intrinsic(prefetch_entry)
