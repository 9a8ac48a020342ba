"""Models of the user's own, whose outputs have a structure: `Structured` makes risks of them."""

from riskmin.structured.model import Structured as Structured
