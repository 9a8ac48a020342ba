"""Executors: hold the shards and run functions on them; no other module knows of threads and processes."""

from riskmin.executors.local import Serial as Serial
from riskmin.executors.local import Threads as Threads
from riskmin.executors.processes import Processes as Processes
