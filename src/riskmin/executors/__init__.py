"""Executors: they hold the shards and run functions on them, in threads, processes or on a cluster."""

from riskmin.executors.base import Backend as Backend
from riskmin.executors.base import Executor as Executor
from riskmin.executors.base import Serial as Serial
from riskmin.executors.base import as_backend as as_backend
from riskmin.executors.local import Threads as Threads
from riskmin.executors.processes import Processes as Processes
