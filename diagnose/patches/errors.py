"""Why something cannot be patched."""

from __future__ import annotations


class CannotPatch(Exception):
    """There can be no patch at all; the message is a sentence that says why and what to do."""


class CannotEdit(Exception):
    """A fix cannot be made in the files; the message is a clause that says why."""
