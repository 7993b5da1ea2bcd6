"""Why a tool does not do what it was asked for."""

from __future__ import annotations


class Refused(Exception):
    """The message is a sentence that says why, and what to do."""
