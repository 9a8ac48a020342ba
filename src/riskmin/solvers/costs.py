"""Costs of products and factorizations, by which Newton's method for several outputs chooses among them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProductCosts:
    """Costs relative to one operation of a large dense matrix product."""

    thin_product: float = 6.0
    """One operation of a product of thin matrices."""
    elementwise: float = 40.0
    """One operation of elementwise work."""
    sparse_entry: float = 25.0
    """One operation of a sparse product."""
    triangular_entry: float = 50.0
    """One entry of a triangular solve."""
    inverse: float = 4.0
    """p^-3 times an inverse of a p by p matrix."""
    numpy_call: float = 2e5
    """One call of NumPy."""


PRODUCT_COSTS = ProductCosts()
