"""Programs that time riskmin against other packages."""
