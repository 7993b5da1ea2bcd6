"""Bytes to trace: one reader per format, the only code that knows a format."""
