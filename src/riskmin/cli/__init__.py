"""The command `riskmin`: fit, path, cv, predict, evaluate, certify, and lists of what there is."""

from riskmin.cli.main import main as main
