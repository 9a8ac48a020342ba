"""Programs that time riskmin against its neighbours."""
