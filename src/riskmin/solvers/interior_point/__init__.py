"""Interior-point methods, for regularizers that are not smooth."""
