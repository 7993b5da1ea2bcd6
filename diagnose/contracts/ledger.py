"""What is remembered of a trial: a line of the ledger."""

from __future__ import annotations

from typing import Annotated

import msgspec

from diagnose.contracts.trials import Range, Verdict

SCHEMA_VERSION = 1

LONGEST = 200
"""Characters of a name (our choice)."""

MOST_SPEEDUP = 1e100
"""Even an interval of two pairs that differ a lot does not go beyond (our choice)."""

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=LONGEST)]
_Day = Annotated[str, msgspec.Meta(pattern=r"^\d{4}-\d\d-\d\d$")]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A trial of one fix. It names no path, command, host or person."""

    schema_version: int = SCHEMA_VERSION
    day: _Day
    """In UTC."""
    rule: _Name
    tool_version: _Name
    torch_version: _Name | None
    device: _Name | None
    """Model of the GPU, else of the CPU; None if the recording does not say."""
    predicted: Range | None
    """Speed-up, before it was corrected by earlier trials; None if only a bound was known."""
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


def is_sound(found: Range) -> bool:
    """Whether a range of speed-ups is in order and within all bounds."""
    return 1 / MOST_SPEEDUP < found.low <= found.likely <= found.high < MOST_SPEEDUP
