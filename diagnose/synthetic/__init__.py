"""Traces drawn in text, for examples, tests and documentation: the notation, and what a recorder would have written."""
