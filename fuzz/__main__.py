"""Coverage-guided fuzzing of the readers and loaders, by atheris.

    python -m fuzz --seconds 3600            # all targets, one after the other
    python -m fuzz csv --seconds 60          # one of them

An input that ends in anything but a success or one printable line of a ValueError is written to
tests/corpus/TARGET-HASH, and the run ends with exit code 1: mend it, and leave the file for the tests.
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
"""Seconds beyond its time after which a target that hangs is ended."""


def fuzz(name: str, seconds: float, seed: int) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
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
        found = [path.read_bytes() for path in CORPUS.glob(f"{name}-*")] if CORPUS.is_dir() else []
        for k, blob in enumerate([*examples(name), *found]):
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
    """Fuzz all targets for their share of the time, each in a process of its own."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="default: all")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    names = given.targets or list(TARGETS)
    if given.here:
        fuzz(names[0], given.seconds, given.seed)
        return 0
    broken = []
    for name in names:
        share = given.seconds / len(names)
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
            str(given.seed),
        ]
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=share + SLACK, check=False
        )
        tail = [
            line for line in done.stderr.split("\n") if "stat::" in line or "Error" in line or "ERROR" in line
        ]
        print(
            "\n".join(tail[-8:]) if done.returncode == 0 else done.stderr[-4000:] + done.stdout[-2000:],
            flush=True,
        )
        if done.returncode:
            broken.append(name)
    print(f"broken: {', '.join(broken) or 'none'}")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main())
