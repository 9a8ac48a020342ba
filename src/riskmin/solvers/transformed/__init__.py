"""Solvers of problems in another form: without a penalty in an orthonormal basis; as separable losses."""
