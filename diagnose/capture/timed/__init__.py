"""Timing ops as they were recorded and after a change, in a process of its own that has torch."""

MARK = "diagnose-timed:"  # Begins the lines of that process that are its answers: importing torch may print others.
