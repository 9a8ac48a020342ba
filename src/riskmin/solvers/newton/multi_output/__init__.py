"""Newton's method for losses with several scores per row."""
