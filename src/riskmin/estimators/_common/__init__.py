"""What the estimators share: input validation, classes, outputs, fitting, warnings."""
