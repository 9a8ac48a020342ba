"""The store: arrays in a folder `.rsk` that are mapped into memory."""
