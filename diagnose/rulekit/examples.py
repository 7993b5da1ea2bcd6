"""Drawings of traces in files of rules: what a rule is to say of each."""

from __future__ import annotations

from msgspec import Struct


class Fires(Struct, frozen=True):
    """A drawing on which the rule fires, once; with `saving_ms`, what the fix saves: (low, high), within 5 %.

    A risk saves nothing, so that its drawing states no saving.
    """

    drawing: str
    saving_ms: tuple[float, float] | None = None


class Silent(Struct, frozen=True):
    """A drawing on which the rule finds nothing worth fixing."""

    drawing: str


class CannotTell(Struct, frozen=True):
    """A drawing that lacks what the rule needs; `because` is part of what it then says."""

    drawing: str
    because: str
