"""Imported once by the process that the workers of a Dask cluster are forked from."""

from dask_forks import warm_up

warm_up()
