"""The subcommands, one file each, and the table by which they are found without importing them."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "audit": ("owners", "Read the log of a data owner."),
    "certify": ("certify", "Verify the certificate of a model against its training data."),
    "convert": ("convert", "Write data as a .rsk store, a memory-mapped folder."),
    "cv": ("cv", "Choose the regularization strength by cross-validation."),
    "demo": ("demo", "Fit and certify a real data set with three losses."),
    "evaluate": ("predict", "Compute the metrics of a model on labeled data."),
    "export": ("convert", "Write a model as ONNX, for predictions without riskmin."),
    "fit": ("fit", "Fit a linear model to data and save it with its certificate."),
    "losses": ("list", "List the losses with formulas, tasks and parameters."),
    "owners": ("owners", "Set up a group of data owners, who share no rows."),
    "path": ("path", "Fit data along a sequence of regularization strengths."),
    "predict": ("predict", "Print one prediction per line."),
    "prove": ("prove", "Write a proof of a model's gap that anyone can check."),
    "regularizers": ("list", "List the regularizers with formulas and parameters."),
    "serve": ("owners", "Answer a coordinator's requests about the rows of an owner."),
    "show": ("show", "Show what a model is: problem, certificate, largest weights."),
    "solvers": ("list", "List the solvers."),
    "verify": ("verify", "Check a proof in exact arithmetic, without trust in riskmin."),
    "warmup": ("warmup", "Compile and cache all functions that fits need."),
}
"""The module in this folder that defines a command, and its line in ``riskmin --help``."""
