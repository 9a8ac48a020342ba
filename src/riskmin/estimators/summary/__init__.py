"""Standard errors of the coefficients of linear estimators."""
