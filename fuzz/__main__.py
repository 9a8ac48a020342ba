"""Coverage-guided fuzzing of the readers and loaders, by atheris.

    python -m fuzz --seconds 3600            # all targets, one after the other
    python -m fuzz csv --seconds 60          # one of them

An input that ends in anything but a success or one printable line of a ValueError is written to
tests/corpus/TARGET-HASH, and the run ends with exit code 1. Fix the bug, and keep the file for the tests.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

from fuzz.targets import TARGETS, examples

CORPUS = Path(__file__).parents[1] / "tests" / "corpus"
SLACK = 60
"""Seconds after its time limit at which a hanging target is killed."""


def fuzz(name: str, seconds: float, seed: int) -> None:
    """Fuzz one target in this process; libFuzzer exits the process at the end."""
    import atheris

    with atheris.instrument_imports(
        include=["riskmin.data", "riskmin.estimators", "riskmin.core.persist", "riskmin.arrays.sparse_checks"]
    ):
        import riskmin.data.formats.conll
        import riskmin.data.formats.npz
        import riskmin.data.formats.parquet
        import riskmin.data.formats.svmlight
        import riskmin.data.formats.tables
        import riskmin.data.store.reader
        import riskmin.estimators.persistence.model_file  # noqa: F401
    target = TARGETS[name]

    def one(blob: bytes) -> None:
        try:
            target(blob)
        except BaseException:
            CORPUS.mkdir(exist_ok=True)
            (CORPUS / f"{name}-{hashlib.sha256(blob).hexdigest()[:12]}").write_bytes(blob)
            raise

    with tempfile.TemporaryDirectory() as top:
        folder = Path(top)
        failures = [path.read_bytes() for path in CORPUS.glob(f"{name}-*")] if CORPUS.is_dir() else []
        for k, blob in enumerate([*examples(name), *failures]):
            (folder / str(k)).write_bytes(blob)
        options = [f"-max_total_time={int(seconds)}", f"-seed={seed}", "-max_len=16384", "-rss_limit_mb=4096"]
        atheris.Setup(
            [
                sys.argv[0],
                str(folder),
                *options,
                "-timeout=30",
                f"-artifact_prefix={top}/",
                "-print_final_stats=1",
            ],
            one,
        )
        atheris.Fuzz()


def main() -> int:
    """Fuzz all targets for equal shares of the time, each in a separate process."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="time limit of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options_given = parser.parse_args()
    names = options_given.targets or list(TARGETS)
    if options_given.here:
        fuzz(names[0], options_given.seconds, options_given.seed)
        return 0
    broken = []
    for name in names:
        share = options_given.seconds / len(names)
        print(f"--- {name}, {share:.0f} s", flush=True)
        command = [
            sys.executable,
            "-m",
            "fuzz",
            name,
            "--here",
            "--seconds",
            str(share),
            "--seed",
            str(options_given.seed),
        ]
        completed = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=share + SLACK, check=False
        )
        tail = [
            line
            for line in completed.stderr.split("\n")
            if "stat::" in line or "Error" in line or "ERROR" in line
        ]
        print(
            "\n".join(tail[-8:])
            if completed.returncode == 0
            else completed.stderr[-4000:] + completed.stdout[-2000:],
            flush=True,
        )
        if completed.returncode:
            broken.append(name)
    print(f"broken: {', '.join(broken) or 'none'}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
