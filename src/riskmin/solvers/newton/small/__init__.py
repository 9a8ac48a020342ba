"""Newton's method on few rows and columns, where calls cost more than sums over the rows."""
