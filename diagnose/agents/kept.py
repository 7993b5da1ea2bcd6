"""The diagnoses that a server remembers, so that tools can be asked for more of them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from diagnose.agents.refusals import Refused
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.reports.quoting import quoted

MOST = 8
"""Diagnoses that are kept: some MB each (our choice)."""


@dataclass(frozen=True)
class Analysed:
    """A diagnosis under its handle."""

    handle: str
    path: str
    """Of what was analysed, from the server's folder on."""
    diagnosis: Diagnosis


class Kept:
    """The last diagnoses, by handle."""

    def __init__(self) -> None:
        self._known = OrderedDict[str, Analysed]()
        self._made = 0

    def keep(self, path: str, diagnosis: Diagnosis) -> Analysed:
        """Remember one under a new handle, and forget the one that was asked for longest ago."""
        self._made += 1
        found = Analysed(f"d{self._made}", path, diagnosis)
        self._known[found.handle] = found
        while len(self._known) > MOST:
            self._known.popitem(last=False)
        return found

    def of(self, handle: str) -> Analysed:
        """The one of a handle. Raises Refused if it is not known any more."""
        if handle not in self._known:
            known = ", ".join(self._known) or "none"
            raise Refused(f"No diagnosis {quoted(handle, 20)} is kept (there are: {known}). Call analyze again.")
        self._known.move_to_end(handle)
        return self._known[handle]
