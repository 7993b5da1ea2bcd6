"""The ledger: a file of the user's on which each trial leaves a line, so that predictions can be held to account.

Only commands read and write it. It is never sent anywhere, and nothing in it says what was trained, by whom or where.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import platformdirs

from diagnose.advice.track_record import device_of, named, rules_of
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.ledger import SCHEMA_VERSION, Entry, is_sound
from diagnose.contracts.ledger_report import LedgerReport
from diagnose.contracts.trials import Report, Trial
from diagnose.trials.selection import step_of, uncorrected
from diagnose.version import __version__

OFF = "DIAGNOSE_NO_LEDGER"
"""Environment variable: if it is set, nothing is remembered, and nothing that was is used."""

MOST_BYTES = 4 << 20
"""That are read, from the end: some ten thousand trials (our choice)."""

_NAME = "ledger.jsonl"
_ENTRY = msgspec.json.Decoder(Entry)


@dataclass(frozen=True)
class Ledger:
    """What was read."""

    file: Path | None
    """None: it is switched off, or the user has no home."""
    entries: tuple[Entry, ...] = ()
    """The oldest first."""
    damaged: int = 0
    """Lines that are no entry."""
    newer: int = 0
    """Lines of later versions of this tool."""
    unread_bytes: int = 0
    """At the beginning of a large file."""
    problem: str = ""
    """A sentence on why it could not be read; empty if it could, or is not there."""

    @property
    def report(self) -> LedgerReport:
        """What it tells, by rule."""
        return LedgerReport(
            tool_version=__version__,
            file=None if self.file is None else str(self.file),
            entries=len(self.entries),
            damaged=self.damaged,
            newer=self.newer,
            unread_bytes=self.unread_bytes,
            rules=rules_of(self.entries),
        )


class _Version(msgspec.Struct):
    schema_version: int


_VERSION = msgspec.json.Decoder(_Version)


def file() -> Path | None:
    """Where it is, or would be; None if it is switched off, or the user has no home."""
    if os.environ.get(OFF):
        return None
    folder = platformdirs.user_state_path("diagnose", appauthor=False)
    return folder / _NAME if folder.is_absolute() else None


def read() -> Ledger:
    """All that is remembered, or its last MOST_BYTES. Raises nothing."""
    place = file()
    if place is None:
        return Ledger(None)
    try:
        with place.open("rb") as lines:
            unread = max(lines.seek(0, os.SEEK_END) - MOST_BYTES, 0)
            lines.seek(unread)
            text = lines.read(MOST_BYTES)
    except FileNotFoundError:
        return Ledger(place)
    except OSError as error:
        return Ledger(place, problem=f"The ledger {place} cannot be read: {error.strerror}.")
    if unread:  # A line that began before is not whole.
        _, _, text = text.partition(b"\n")
    entries, damaged, newer = list[Entry](), 0, 0
    for line in text.split(b"\n"):
        if not line.strip():
            continue
        found = _entry(line)
        if found is not None:
            entries.append(found)
        elif _is_newer(line):
            newer += 1
        else:
            damaged += 1
    return Ledger(place, tuple(entries), damaged, newer, unread)


def remember(report: Report, diagnosis: Diagnosis, say: Callable[[str], None]) -> None:
    """Keep what the trials of a run have found. If that fails it is said; a trial never fails by it.

    Of fixes that were tried together nothing is kept: no rule had predicted them.
    """
    place, entries = file(), entries_of(report, diagnosis)
    if place is None or not entries:
        return
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _append(place, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    except OSError as error:
        say(f"these trials could not be remembered in {place}: {error.strerror}")


def entries_of(report: Report, diagnosis: Diagnosis) -> list[Entry]:
    """What is to be remembered of trials."""
    manifest, step_ns = diagnosis.provenance.manifest, step_of(diagnosis)
    found = {finding.rank_order: finding for finding in diagnosis.findings}
    day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    return [
        Entry(
            day=day,
            rule=rule,
            tool_version=report.tool_version,
            torch_version=named(None if manifest is None else manifest.versions.get("torch")),
            device=None if manifest is None else device_of(manifest),
            predicted=uncorrected(found[one.numbers[0]], step_ns),
            measured=one.measured if one.measured is None or is_sound(one.measured) else None,
            verdict=one.verdict,
        )
        for one in _ended(report)
        if one.numbers[0] in found and (rule := named(one.rule)) is not None
    ]


def _ended(report: Report) -> Sequence[Trial]:
    """Trials of one fix, without one that was interrupted before anything was measured."""
    return [
        trial
        for trial in report.trials
        if len(trial.numbers) == 1
        and (report.complete or trial.measured is not None or trial.verdict != "inconclusive")
    ]


def _append(place: Path, lines: bytes) -> None:
    """All at once, so that lines of other processes stay whole. What is there is never changed. Raises OSError."""
    with place.open("ab", buffering=0) as end:
        if _is_torn(place):
            lines = b"\n" + lines
        if end.write(lines) != len(lines):
            raise OSError(0, "The disk is full")


def _is_torn(place: Path) -> bool:
    """Whether the last line does not end: a disk was full once."""
    with place.open("rb") as lines:
        if not lines.seek(0, os.SEEK_END):
            return False
        lines.seek(-1, os.SEEK_END)
        return lines.read(1) != b"\n"


def _entry(line: bytes) -> Entry | None:
    try:
        found = _ENTRY.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if found.schema_version == SCHEMA_VERSION else None


def _is_newer(line: bytes) -> bool:
    try:
        return _VERSION.decode(line).schema_version > SCHEMA_VERSION
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
