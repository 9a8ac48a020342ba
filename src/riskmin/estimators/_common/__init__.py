"""Code shared by the estimators: input validation, classes, outputs, fitting, warnings."""
