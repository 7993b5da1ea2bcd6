"""What to record, and where: written by the command that starts the run, read by every process of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

WORK = ".work"
"""Folder in the recording for what the processes tell each other; gone once the recording is complete."""

INTERRUPTED = "interrupted"
"""What a script posts when an interrupt ends it."""

FILES = {"timing": "trace", "attribution": "detail"}
"""What a kind of recording is called among the files."""

GRAPH = "graph.json.gz"
"""How the name of the file ends that has autograd's graph of one step."""

VALUES = "values.json.gz"
"""How the name of the file ends that tells which ops compute what has been computed before."""

ENDINGS = {"torch": "json.gz", "nsys": "sqlite"}
"""How the names of a tracer's files end."""


@dataclass(frozen=True)
class Plan:
    """How much to record."""

    warmup: int = 10
    """Steps that are skipped, at least."""
    steps: int = 5
    """Steps of the timing recording that can be used."""
    memory: bool = False
    """Record allocations too."""
    tracer: str = "torch"
    """What records: "torch" (torch.profiler) or "nsys" (Nsight Systems)."""
    keep_running: bool = False
    """Let the script go on after recording."""
    most_bytes: int = 200_000_000
    """Of one trace, before compression."""
    calls_after_s: float = 30.0
    """Without any step for so long, calls of the model are counted, too."""
    hint_after_s: float = 60.0
    """Without any step for so long, the user is told how to mark them."""
    window_after_s: float = 120.0
    """Without any step for so long, a stretch of time is recorded instead."""
    timed: int | None = None
    """Time at least so many steps and record none, as an arm of a trial does; None: record."""
    timed_s: float = 0.0
    """Of such an arm: go on timing for so long, if the script makes that many steps."""
    fixes: Sequence[str] = ()
    """What to inject, as in `Fix.trial`."""

    def write(self, recording: Path) -> None:
        """Into the recording's folder."""
        (recording / WORK).mkdir(parents=True, exist_ok=True)
        (recording / WORK / "plan.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(recording: Path) -> Plan:
        """The plan of a recording's folder."""
        return Plan(**json.loads((recording / WORK / "plan.json").read_text(encoding="utf-8")))
