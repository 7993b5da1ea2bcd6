"""Why tables cannot be written."""

from __future__ import annotations


class CannotExport(Exception):
    """One or two sentences: what is wrong, and what to do."""
