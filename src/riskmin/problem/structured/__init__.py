"""User-defined models of structured outputs: `Structured` makes risks of them."""

from riskmin.problem.structured.model import Structured as Structured
