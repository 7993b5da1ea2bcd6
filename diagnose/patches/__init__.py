"""Fixes of a diagnosis as changes of the user's files."""
