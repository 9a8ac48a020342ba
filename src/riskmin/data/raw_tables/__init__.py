"""Tables as they come: columns of numbers, text and missing cells, and their preparation as X."""
