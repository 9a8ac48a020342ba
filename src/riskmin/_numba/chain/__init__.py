"""Compiled dynamic programs over label sequences."""
