"""`riskmin verify`: check a proof that `riskmin prove` wrote."""

from __future__ import annotations

from pathlib import Path

import click

from riskmin import verify as verifier
from riskmin.cli.inputs import PATH_TYPE


@click.command()
@click.argument("proof", type=PATH_TYPE)
@click.argument("data", type=PATH_TYPE)
def verify(proof: Path, data: Path) -> int:
    """Check PROOF against DATA, the training data, in exact arithmetic.

    The exit code is 0 if the proof holds, 1 if it does not, and 2 if a file cannot be read. The same check
    needs neither riskmin nor NumPy: python verify.py PROOF DATA, with the file verify.py alone.
    """
    return verifier.main([str(proof), str(data)])
