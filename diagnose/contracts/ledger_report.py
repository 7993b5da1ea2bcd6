"""What the ledger tells: the JSON of `diagnose ledger --json`, and what its text is written from."""

from __future__ import annotations

import msgspec

from diagnose.contracts.track_record import TrackRecord

SCHEMA_VERSION = 1


class RuleTrials(msgspec.Struct, frozen=True):
    """Of a rule, on one device."""

    device: str | None
    rule: str
    record: TrackRecord
    verdicts: dict[str, int]
    """Trials by verdict, those alone that there are."""


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    file: str | None
    """None: the ledger is switched off, or the user has no folder for it."""
    entries: int
    damaged: int
    """Lines that are no trial; they are skipped."""
    newer: int
    """Lines of a later version of this tool; they are skipped."""
    unread_bytes: int
    """Of the oldest trials, beyond what is read of a large file."""
    rules: tuple[RuleTrials, ...]
    """By device and rule."""
