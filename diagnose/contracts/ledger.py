"""What is remembered of trials: a line of the ledger, and what `diagnose ledger --json` tells of all lines."""

from typing import Annotated

import msgspec

from diagnose.contracts.trials import Range, Verdict
from diagnose.trace.manifest import Manifest

SCHEMA_VERSION = 1

LONGEST = 200  # Characters of a name (our choice).
MOST_SPEEDUP = 1e100  # Even an interval of two pairs that differ a lot does not go beyond (our choice).

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
_Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of one fix. It names no path, command, host or person."""

    schema_version: int = SCHEMA_VERSION
    day: _Day  # In UTC.
    rule: _Name
    tool_version: _Name
    torch_version: _Name | None
    device: _Name | None  # Model of the GPU, else of the CPU; None if the recording does not say.
    predicted: Range | None  # Speed-up; None if only a bound was known.
    measured: Range | None
    verdict: Verdict

    def __post_init__(self) -> None:
        """Raises ValueError where a terminal would not show a name as it is, or a range is none."""
        for name in (self.rule, self.tool_version, self.torch_version or "", self.device or ""):
            if not name.isprintable():
                raise ValueError("A name has characters that cannot be printed.")
        for found in (self.predicted, self.measured):
            if found is not None and not is_sound(found):
                raise ValueError("A range is not in order, or beyond all bounds.")


class RuleTrials(msgspec.Struct, frozen=True):
    """How predictions of a rule have compared with trials, on one device."""

    device: str | None
    rule: str
    trials: int
    measured: int  # Trials in which the step was timed with the fix.
    compared: int  # Different predictions that a trial has measured well enough to tell the predicted gain from none.
    held: int  # Of these: the measured speed-up lies within the predicted range.
    ratio_median: float | None
    """Measured over predicted gain, as logarithms of speed-ups; None if nothing was compared."""
    verdicts: dict[str, int]  # Trials by verdict, those alone that there are.


class LedgerReport(msgspec.Struct, frozen=True, kw_only=True):
    """All that is remembered."""

    schema_version: int = SCHEMA_VERSION
    tool_version: str
    file: str | None  # None: the ledger is switched off, or the user has no folder for it.
    entries: int
    skipped: int  # Lines that are no trial, or of another version of this tool.
    rules: tuple[RuleTrials, ...]  # By device and rule.


def is_sound(found: Range) -> bool:
    """Whether a range of speed-ups is in order and within all bounds."""
    return 1 / MOST_SPEEDUP < found.low <= found.likely <= found.high < MOST_SPEEDUP


def device_of(manifest: Manifest) -> str | None:
    """Model of the GPU that the training used, else of the CPU."""
    names = [device.name for device in manifest.devices if device.name] or [manifest.host.cpu or ""]
    return named(names[0])


def named(text: str | None) -> str | None:
    """A name as an entry holds it; None if nothing is left."""
    return "".join(letter for letter in text or "" if letter.isprintable())[:LONGEST].strip() or None
