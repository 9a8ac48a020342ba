"""Small numerical methods that several packages share: projections, sorting, search in one variable."""
