"""What the ledger tells: the JSON of `diagnose ledger --json`, and what its text is written from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from diagnose.findings.ledger import Entry
from diagnose.findings.track_record import TrackRecord, track_record

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


def rules_of(entries: Sequence[Entry]) -> tuple[RuleTrials, ...]:
    """How predictions have compared with trials, by device and rule."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for one in entries:
        found.setdefault((one.device or "", one.rule), []).append(one)
    return tuple(
        RuleTrials(device or None, rule, track_record(some), dict(Counter(one.verdict for one in some).most_common()))
        for (device, rule), some in sorted(found.items())
    )
