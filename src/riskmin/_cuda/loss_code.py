"""Traced losses as C: the assignments of one row, as the body of a function that every kernel calls."""

from __future__ import annotations

import ast
from collections.abc import Sequence

PROTOTYPE = """{prefix} void row_loss(
    double z, double y, double c, const double* k, double& value, double& slope, double& offset,
    double& curvature)
"""
FUNCTIONS = {"abs": "fabs"}
"""Functions with other names in C; those of `math` and NumPy have the same."""
OPERATORS = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.BitAnd: "&",
    ast.BitOr: "|",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}
BOOLEAN = ast.Compare, ast.Not, ast.BitAnd, ast.BitOr


def loss_source(
    lines: Sequence[str],
    n_parameters: int,
    outputs: Sequence[str],
    prefix: str = "__device__ __forceinline__",
) -> str:
    """Return the C function of a row program: value, slope, minorant offset and second derivative.

    Examples
    --------
    >>> print(loss_source(["t0 = (z * z)"], 0, ["t0", "z", "0.0", "1.0"], prefix="static").split("{")[1])
    <BLANKLINE>
      const double t0 = (z * z);
      value = t0;
      slope = z;
      offset = 0.0;
      curvature = 1.0;
    }
    <BLANKLINE>
    """
    body = [f"const double k{j} = k[{j}];" for j in range(n_parameters)]
    body += [_assignment(line) for line in lines]
    names = "value", "slope", "offset", "curvature"
    body += [f"{name} = {output};" for name, output in zip(names, outputs, strict=True)]
    return PROTOTYPE.format(prefix=prefix) + "{\n" + "\n".join(f"  {line}" for line in body) + "\n}\n"


def _assignment(line: str) -> str:
    statement = ast.parse(line).body[0]
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.targets[0], ast.Name)
    value = statement.value
    boolean = isinstance(value, ast.Compare) or isinstance(getattr(value, "op", None), BOOLEAN)
    return f"const {'bool' if boolean else 'double'} {statement.targets[0].id} = {_expression(value)};"


def _expression(node: ast.expr) -> str:
    """Return a Python expression of numbers as C."""
    if isinstance(node, ast.Constant):
        return repr(float(node.value))  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):  # math.inf is the only one
        return "INFINITY"
    if isinstance(node, ast.IfExp):
        return f"({_expression(node.test)} ? {_expression(node.body)} : {_expression(node.orelse)})"
    if isinstance(node, ast.UnaryOp):
        return f"({'!' if isinstance(node.op, ast.Not) else '-'}{_expression(node.operand)})"
    if isinstance(node, ast.Compare):
        a, b = _expression(node.left), _expression(node.comparators[0])
        return f"({a} {OPERATORS[type(node.ops[0])]} {b})"
    if isinstance(node, ast.BinOp):
        a, b = _expression(node.left), _expression(node.right)
        return f"pow({a}, {b})" if isinstance(node.op, ast.Pow) else f"({a} {OPERATORS[type(node.op)]} {b})"
    assert isinstance(node, ast.Call), ast.dump(node)
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else function.id  # type: ignore[attr-defined]
    return f"{FUNCTIONS.get(name, name)}({', '.join(map(_expression, node.args))})"
