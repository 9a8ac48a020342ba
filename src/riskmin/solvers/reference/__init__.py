"""Methods of the papers as published, for their theorems and for comparison; `Auto` does not select them."""
