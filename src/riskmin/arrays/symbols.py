"""Symbols in place of arrays: array code that is called with them records the expression of one row.

A loss is array code over z, y and c. Called with `Symbol`s, it performs the same operations, and each is
recorded as an assignment; ``c @ e`` and ``e.sum()`` become `RowSum`s of the term of one row. Code that needs
the numbers themselves (a branch on data, a length, a call into another library) raises `Untraceable`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

INLINE_CONSTANTS = {0.0, 0.5, 1.0, 2.0, -1.0}
"""Constants in the text of an expression. All others are parameters: other values need no new compilation."""
FUNCTIONS = {
    "exp": "exp({})",
    "log": "log({})",
    "log1p": "log1p({})",
    "expm1": "math.expm1({})",
    "sqrt": "math.sqrt({})",
    "tanh": "math.tanh({})",
    "sin": "math.sin({})",
    "cos": "math.cos({})",
    "atan": "math.atan({})",
    # those of math return integers
    "floor": "np.floor({})",
    "ceil": "np.ceil({})",
    "square": "({0} * {0})",
    "abs": "abs({})",
    # zero and NaN are their own signs
    "sign": "(1.0 if {0} > 0.0 else (-1.0 if {0} < 0.0 else {0}))",
}
"""Elementwise functions of one argument, as text; `exp`, `log` and `log1p` are those of `_numba`."""
ALIASES = {"absolute": "abs", "fabs": "abs", "arctan": "atan"}
"""NumPy's names of functions that the standard of array APIs names differently."""
PREDICATES = {"isnan": "({0} != {0})", "isinf": "(abs({}) == math.inf)", "isfinite": "(abs({}) < math.inf)"}
"""Functions whose values are booleans."""
COMPARISONS = {
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
    "equal": "==",
    "not_equal": "!=",
}
ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "true_divide": "/"}


class Untraceable(BaseException):
    """Raised by operations that depend on the numbers of an array, or that have no symbolic form.

    No Exception: a loss that catches exceptions, to choose between two ways, must not hide it.
    """


class Recording:
    """The assignments of one row, in order, and the parameters that occur in them."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.parameters: dict[float, str] = {}
        """Names of the constants, by value."""
        self._names: dict[str, str] = {}

    def symbol(self, expression: str, boolean: bool = False) -> Symbol:
        """Return the symbol of an expression; the same one if it occurred before."""
        name = self._names.get(expression)
        if name is None:
            name = self._names[expression] = f"t{len(self.lines)}"
            self.lines.append(f"{name} = {expression}")
        return Symbol(self, name, boolean)

    def binary(self, a: Any, b: Any, sign: str, boolean: bool = False) -> Symbol:
        """Return the symbol of ``a sign b``."""
        if sign in "+-" and all(isinstance(v, Symbol) and v.boolean for v in (a, b)):
            raise Untraceable("a sum of comparisons, which is no number in NumPy")
        return self.symbol(f"({self.text(a)} {sign} {self.text(b)})", boolean)

    def text(self, value: Any) -> str:
        """Return the name of a symbol, as a number, or the name or text of a constant."""
        if isinstance(value, Symbol):
            return value.as_float().name
        if isinstance(value, RowSum) or np.ndim(value):
            raise Untraceable(f"a {type(value).__name__} in an expression of one row")
        number = float(value)
        if number in INLINE_CONSTANTS:
            return repr(number)
        if number != number:
            raise Untraceable("NaN as a constant")
        return self.parameters.setdefault(number, f"k{len(self.parameters)}")


class RowSum:
    """A sum over all rows of the expression of one row."""

    __array_ufunc__ = None
    """NumPy's numbers and arrays leave operations to this class."""

    def __init__(self, term: Symbol) -> None:
        self.term = term

    def _plus(self, other: Any, sign: int) -> RowSum:
        if isinstance(other, RowSum):
            return RowSum(self.term + other.term if sign > 0 else self.term - other.term)
        if isinstance(other, (int, float)) and other == 0:
            return self
        raise Untraceable("a sum over rows plus another number")

    def __add__(self, other: Any) -> RowSum:
        return self._plus(other, 1)

    __radd__ = __add__

    def __sub__(self, other: Any) -> RowSum:
        return self._plus(other, -1)

    def __mul__(self, factor: Any) -> RowSum:
        if isinstance(factor, RowSum):
            raise Untraceable("a product of sums over rows")
        return RowSum(self.term * factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> RowSum:
        if isinstance(divisor, RowSum):
            raise Untraceable("a ratio of sums over rows")
        return RowSum(self.term / divisor)

    def __neg__(self) -> RowSum:
        return RowSum(-self.term)

    def _refuse(self, *args: Any) -> NoReturn:
        raise Untraceable("the number of a sum over rows")

    __hash__ = None  # type: ignore[assignment]
    __bool__ = __float__ = __int__ = __index__ = __array__ = __abs__ = __pow__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse


class Symbol:
    """The entry of an array at one row, in place of the array."""

    ndim = 1
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, recording: Recording, name: str, boolean: bool = False) -> None:
        self.recording, self.name, self.boolean = recording, name, boolean
        self.dtype = np.dtype(bool if boolean else np.float64)

    @property  # type: ignore[misc]
    def __class__(self) -> NoReturn:  # type: ignore[override]
        """Refuse isinstance, for other classes than this one: what depends on it may depend on numbers."""
        raise Untraceable("the class of an array")

    def __array_namespace__(self, api_version: str | None = None) -> SymbolNamespace:
        return SymbolNamespace(self.recording)

    def as_float(self) -> Symbol:
        """Return the symbol as a number: 1 for True and 0 for False."""
        return self.recording.symbol(f"(1.0 if {self.name} else 0.0)") if self.boolean else self

    def combine(self, other: Any, sign: str, *, swap: bool = False, boolean: bool = False) -> Symbol:
        """Return the symbol of ``self sign other``, or of ``other sign self``."""
        a, b = (other, self) if swap else (self, other)
        return self.recording.binary(a, b, sign, boolean)

    def logical(self, other: Any, sign: str) -> Symbol:
        """Return the symbol of a logical operation."""
        if not (self.boolean and isinstance(other, Symbol) and other.boolean):
            raise Untraceable("a bitwise operation on numbers")
        return self.recording.symbol(f"({self.name} {sign} {other.name})", True)

    def __add__(self, other: Any) -> Symbol:
        return self.combine(other, "+")

    def __radd__(self, other: Any) -> Symbol:
        return self.combine(other, "+", swap=True)

    def __sub__(self, other: Any) -> Symbol:
        return self.combine(other, "-")

    def __rsub__(self, other: Any) -> Symbol:
        return self.combine(other, "-", swap=True)

    def __mul__(self, other: Any) -> Symbol:
        return self.combine(other, "*")

    def __rmul__(self, other: Any) -> Symbol:
        return self.combine(other, "*", swap=True)

    def __truediv__(self, other: Any) -> Symbol:
        return self.combine(other, "/")

    def __rtruediv__(self, other: Any) -> Symbol:
        return self.combine(other, "/", swap=True)

    def __lt__(self, other: Any) -> Symbol:
        return self.combine(other, "<", boolean=True)

    def __le__(self, other: Any) -> Symbol:
        return self.combine(other, "<=", boolean=True)

    def __gt__(self, other: Any) -> Symbol:
        return self.combine(other, ">", boolean=True)

    def __ge__(self, other: Any) -> Symbol:
        return self.combine(other, ">=", boolean=True)

    def __eq__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self.combine(other, "==", boolean=True)

    def __ne__(self, other: Any) -> Symbol:  # type: ignore[override]
        return self.combine(other, "!=", boolean=True)

    def __neg__(self) -> Symbol:
        return self.recording.symbol(f"(-{self.recording.text(self)})")

    def __pos__(self) -> Symbol:
        return self

    def __abs__(self) -> Symbol:
        return self.recording.symbol(f"abs({self.recording.text(self)})")

    def __invert__(self) -> Symbol:
        if not self.boolean:
            raise Untraceable("a bitwise operation on numbers")
        return self.recording.symbol(f"(not {self.name})", True)

    def __and__(self, other: Any) -> Symbol:
        return self.logical(other, "&")

    def __or__(self, other: Any) -> Symbol:
        return self.logical(other, "|")

    __rand__ = __and__
    __ror__ = __or__

    def __pow__(self, power: Any) -> Symbol:
        name = self.recording.text(self)
        if not isinstance(power, Symbol):
            p = float(power)
            if p == 0.5:
                return self.recording.symbol(f"math.sqrt({name})")
            if p in range(5):  # small powers are products
                return (
                    self.recording.symbol("(" + " * ".join(["1.0"] + [name] * int(p)) + ")")
                    if p != 1
                    else self
                )
        return self.combine(power, "**")

    def __rpow__(self, base: Any) -> Symbol:
        return self.combine(base, "**", swap=True)

    def __matmul__(self, other: Any) -> RowSum:
        if not isinstance(other, Symbol):
            raise Untraceable("an inner product with an array that is no argument of the loss")
        return RowSum(self * other)

    def sum(self, axis: int | None = None) -> RowSum:
        """Return the sum over rows."""
        return RowSum(self)

    def astype(self, dtype: Any, copy: bool = True) -> Symbol:
        """Return the symbol as a number, or as it is."""
        return _cast(self, dtype)

    def copy(self) -> Symbol:
        """Return the symbol itself: symbols do not change."""
        return self

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's function of the same name, for losses that call NumPy itself."""
        if method != "__call__" or options:
            raise Untraceable(f"np.{ufunc.__name__}.{method} with {sorted(options)}")
        return getattr(SymbolNamespace(self.recording), ufunc.__name__)(*inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        return getattr(SymbolNamespace(self.recording), function.__name__)(*args, **options)

    def _refuse(self, *args: Any) -> NoReturn:
        raise Untraceable("an operation that depends on the entries, the length or the memory of an array")

    __bool__ = __float__ = __int__ = __index__ = __len__ = __iter__ = __array__ = _refuse
    __getitem__ = __setitem__ = __contains__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __divmod__ = __rdivmod__ = __xor__ = _refuse

    def __getattr__(self, name: str) -> NoReturn:
        # NumPy asks for its protocols, which are not there
        raise (
            AttributeError(name)
            if name.startswith("__")
            else Untraceable(f"the attribute {name} of an array")
        )


def _cast(a: Symbol, dtype: Any) -> Symbol:
    """Return a symbol as a number; numbers are computed in double precision, whatever their type."""
    if np.dtype(dtype).kind != "f":
        raise Untraceable(f"a conversion to {dtype}")
    return a.as_float()


class SymbolNamespace:
    """The functions of the array API standard on symbols, as far as they act on each entry alone."""

    float64, float32, pi, inf, e = np.float64, np.float32, math.pi, math.inf, math.e
    finfo = staticmethod(np.finfo)

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def __getattr__(self, name: str) -> Callable[..., Any]:
        name = ALIASES.get(name, name)
        form = FUNCTIONS.get(name) or PREDICATES.get(name)
        if form is not None:
            text, boolean = form, name in PREDICATES
            return lambda a: self.recording.symbol(text.format(self.recording.text(a)), boolean)
        sign = ARITHMETIC.get(name) or COMPARISONS.get(name)
        if sign is not None:
            return lambda a, b: self.recording.binary(a, b, sign, name in COMPARISONS)
        raise Untraceable(f"the function {name}")

    def _choose(self, a: Any, b: Any, sign: str) -> Symbol:
        # NaN in either argument is the result, as in NumPy: y is the result of a comparison that fails
        x, y = self.recording.text(a), self.recording.text(b)
        return self.recording.symbol(f"({x} if ({x} {sign} {y}) | ({x} != {x}) else {y})")

    def minimum(self, a: Any, b: Any) -> Symbol:
        return self._choose(a, b, "<")

    def maximum(self, a: Any, b: Any) -> Symbol:
        return self._choose(a, b, ">")

    def clip(self, a: Any, min: Any = None, max: Any = None) -> Any:
        a = a if min is None else self.maximum(a, min)
        return a if max is None else self.minimum(a, max)

    def where(self, condition: Any, a: Any, b: Any) -> Symbol:
        if not (isinstance(condition, Symbol) and condition.boolean):
            raise Untraceable("a choice by something else than a comparison")
        text = self.recording.text
        return self.recording.symbol(f"({text(a)} if {condition.name} else {text(b)})")

    def astype(self, a: Any, dtype: Any, *, copy: bool = True) -> Symbol:
        return _cast(a, dtype)

    def zeros_like(self, a: Any) -> Symbol:
        return self.recording.symbol("0.0")

    def ones_like(self, a: Any) -> Symbol:
        return self.recording.symbol("1.0")

    def full_like(self, a: Any, value: float) -> Symbol:
        return self.recording.symbol(self.recording.text(value))

    def sum(self, a: Symbol) -> RowSum:
        return a.sum()

    def vecdot(self, a: Symbol, b: Any) -> RowSum:
        return a.__matmul__(b)

    dot = vdot = matmul = vecdot

    def negative(self, a: Symbol) -> Symbol:
        return -a

    def power(self, a: Any, b: Any) -> Symbol:
        return a**b if isinstance(a, Symbol) else self.recording.binary(a, b, "**")

    def logical_and(self, a: Symbol, b: Any) -> Symbol:
        return a.logical(b, "&")

    def logical_or(self, a: Symbol, b: Any) -> Symbol:
        return a.logical(b, "|")

    def logical_not(self, a: Symbol) -> Symbol:
        return ~a

    pow, bitwise_and, bitwise_or, bitwise_invert = power, logical_and, logical_or, logical_not
