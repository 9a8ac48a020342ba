"""Newton's method on rows of other array libraries than NumPy, such as on a GPU."""
