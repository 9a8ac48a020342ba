"""The command `riskmin`: fit, path, cv, predict, evaluate, certify, convert, and lists of its components."""

from riskmin.cli.main import main as main
