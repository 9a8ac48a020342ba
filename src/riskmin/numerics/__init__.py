"""Small numerical methods that several rooms share."""
