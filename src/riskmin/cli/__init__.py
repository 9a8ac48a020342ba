"""The command `riskmin`: fit, predict, evaluate, certify, losses, demo."""

from riskmin.cli.main import main as main
