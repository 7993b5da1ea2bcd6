"""The ledger: a file of the user's on which each trial leaves a line, so that predictions can be held to account.

Only commands read and write it. It is never sent anywhere, and nothing in it says what was trained, by whom or where.
"""

import math
import os
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path

import msgspec
import platformdirs
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.ledger import SCHEMA_VERSION, Entry, LedgerReport, RuleTrials, device_of, is_sound, named
from diagnose.contracts.trials import Range, Report
from diagnose.version import __version__

OFF = "DIAGNOSE_NO_LEDGER"  # Environment variable: if it is set, nothing is remembered.
TIMED = ("keep", "no_gain", "slower", "inconclusive")  # Verdicts on fixes with which a training computes the same.
_ENTRY = msgspec.json.Decoder(Entry)


class Ledger(Struct, frozen=True):
    """What was read of the ledger."""

    file: Path | None  # None: it is switched off, or the user has no home.
    entries: tuple[Entry, ...] = ()  # The oldest first.
    skipped: int = 0  # Lines that are no entry of this version.

    @property
    def report(self) -> LedgerReport:
        """The entries summed up by device and rule."""
        return LedgerReport(
            tool_version=__version__,
            file=None if self.file is None else str(self.file),
            entries=len(self.entries),
            skipped=self.skipped,
            rules=rules_of(self.entries),
        )


def file() -> Path | None:
    """Where the ledger is, or would be; None if it is switched off, or the user has no home."""
    if os.environ.get(OFF):
        return None
    folder = platformdirs.user_state_path("diagnose", appauthor=False)
    return folder / "ledger.jsonl" if folder.is_absolute() else None


def read() -> Ledger:
    """The ledger's entries, empty if there is no file. Raises OSError."""
    place = file()
    if place is None or not place.exists():
        return Ledger(place)
    lines = [_entry(line) for line in place.read_bytes().split(b"\n") if line.strip()]
    entries = tuple(entry for entry in lines if entry is not None)
    return Ledger(place, entries, len(lines) - len(entries))


def remember(report: Report, diagnosis: Diagnosis, say: Callable[[str], None]) -> None:
    """Keep what the trials of a run have found; if that fails, `say` gets why, and nothing is raised. Of fixes that
    were tried together nothing is kept: no rule had predicted them."""
    place, entries = file(), entries_of(report, diagnosis)
    if place is None or not entries:
        return
    try:
        place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _append(place, b"".join(msgspec.json.encode(entry) + b"\n" for entry in entries))
    except OSError as error:
        say(f"these trials could not be remembered in {place}: {error.strerror}")


def entries_of(report: Report, diagnosis: Diagnosis) -> list[Entry]:
    """An entry per trial of one finding's fix, unless its rule has no proper name, or it was interrupted unmeasured."""
    manifest = diagnosis.provenance.manifest
    is_bound = {finding.rank_order: finding.saving.basis.is_bound for finding in diagnosis.findings}
    day = f"{datetime.now(timezone.utc):%Y-%m-%d}"
    return [
        Entry(
            day=day,
            rule=rule,
            tool_version=report.tool_version,
            torch_version=named(None if manifest is None else manifest.versions.get("torch")),
            device=None if manifest is None else device_of(manifest),
            predicted=None if is_bound[one.numbers[0]] else one.predicted,
            measured=one.measured if one.measured is None or is_sound(one.measured) else None,
            verdict=one.verdict,
        )
        for one in report.trials
        if len(one.numbers) == 1
        # None that was interrupted before anything was measured.
        and (report.complete or one.measured is not None or one.verdict != "inconclusive")
        and one.numbers[0] in is_bound
        and (rule := named(one.rule)) is not None
    ]


def rules_of(entries: Sequence[Entry]) -> tuple[RuleTrials, ...]:
    """How predictions have compared with trials, by device and rule; entries begin with the oldest."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.device or "", entry.rule), []).append(entry)
    return tuple(_rule_trials(some) for _, some in sorted(found.items()))


def _rule_trials(entries: Sequence[Entry]) -> RuleTrials:
    """Counts and ratios of one rule's trials on one device; of trials with equal predictions the latest is compared."""
    timed = [(one.predicted, one.measured) for one in entries if one.verdict in TIMED]
    compared = {said: found for said, found in timed if said and found and _tells(said, found)}
    ratios = [math.log(found.likely) / math.log(said.likely) for said, found in compared.items()]
    return RuleTrials(
        device=entries[0].device,
        rule=entries[0].rule,
        trials=len(entries),
        measured=sum(entry.measured is not None for entry in entries),
        compared=len(compared),
        held=sum(said.low <= found.likely <= said.high for said, found in compared.items()),
        ratio_median=statistics.median(ratios) if ratios else None,
        verdicts=dict(Counter(one.verdict for one in entries).most_common()),
    )


def _tells(predicted: Range, measured: Range) -> bool:
    """Whether a measurement is precise enough to tell the predicted gain from none. What was measured does not count:
    without fixes that gained little, predictions would look better than they are."""
    return math.log(measured.high / measured.low) / 2 < math.log(predicted.likely)


def _append(place: Path, lines: bytes) -> None:
    """Append lines by one write, so that those of other processes stay whole; a torn last line ends. Raises OSError."""
    with place.open("ab+", buffering=0) as file:
        if file.seek(0, os.SEEK_END):
            file.seek(-1, os.SEEK_END)
            lines = lines if file.read(1) == b"\n" else b"\n" + lines  # The last one is torn.
        if file.write(lines) != len(lines):
            raise OSError(0, "The disk is full")


def _entry(line: bytes) -> Entry | None:
    """A line of the ledger; None if it cannot be read or has another schema version."""
    try:
        entry = _ENTRY.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return entry if entry.schema_version == SCHEMA_VERSION else None
