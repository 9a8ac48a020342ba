"""User-defined models of structured outputs: `Structured` makes risks of them."""

from riskmin.structured.model import Structured as Structured
