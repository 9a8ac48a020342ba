"""Tables of the papers whose methods riskmin holds, computed anew."""
