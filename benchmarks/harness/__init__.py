"""Run every solver on the same objective: tasks, data sets, adapters, timing and reports.

A **task** (`tasks.py`) is a loss, a regularizer and one reference function J(w) in plain NumPy; a **data
set** (`data.py`) is a reader; an **adapter** (`ours.py`, `peers/`) is one solver. `racers.py` and `cells.py`
run and time them; `report.py`, `plot.py` and `memory.py` present the results. For the method of measurement,
see `python -m benchmarks --help`.
"""
