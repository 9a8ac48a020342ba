"""Every solver on the same objective: tasks, data sets, adapters, the clock, and what is printed of it.

A **task** (`tasks.py`) is a loss, a regularizer and one reference function J(w) in plain NumPy; a **data
set** (`data.py`) is a reader; an **adapter** (`ours.py`, `peers/`) is one solver. `racers.py` and `cells.py`
put them together and take the times; `report.py`, `plot.py` and `memory.py` say what came out. How it is
measured: `python -m benchmarks --help`.
"""
