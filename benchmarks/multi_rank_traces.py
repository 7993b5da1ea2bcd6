"""How diagnoses of real recordings of many ranks compare with a reviewer's.

The verdicts in multi_rank_verdicts.json were written from the traces, and from the scripts that made them, before the
diagnosis was looked at: which rank, stage or collective to look at first, causes with what a fix would save, and advice
that would be wrong.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from benchmarks.gpu_traces import Cause, Wrong

HERE = Path(__file__).parent


class Verdict(msgspec.Struct, frozen=True):
    """A reviewer's view of a job. The file also has the program, evidence, and why advice would be wrong."""

    trace: str
    """In the corpus: a folder with a file for each rank, or a file of all ranks."""
    job: str
    """DDP, TP, PP and so on."""
    ranks: int
    look_at: tuple[int, ...]
    """Ranks that the first screen is to name, one of them; none of a job in which no rank stands out."""
    stages: tuple[int, ...]
    """Stages of a pipeline that it is to name."""
    held_in: tuple[str, ...]
    """Collectives that it is to name, one of them: what holds ranks up longest by itself."""
    tolerated: tuple[int, ...]
    """Ranks that it may name besides: chance made them late in this recording."""
    causes: tuple[Cause, ...]
    """In order."""
    must_not: tuple[Wrong, ...]


def verdicts() -> tuple[Verdict, ...]:
    """All of them."""
    return msgspec.json.decode((HERE / "multi_rank_verdicts.json").read_bytes(), type=tuple[Verdict, ...])
