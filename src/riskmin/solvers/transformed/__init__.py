"""Solvers of problems in another form: without a penalty, in an orthonormal basis; and as separable losses."""
