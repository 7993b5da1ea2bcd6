"""What to record, and where: written by the command that starts the run, read by every process of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .place import MOST

WORK = ".work"  # Folder in the recording for what processes and commands tell each other; gone once it is complete.
RECORDING = "DIAGNOSE_RECORDING"  # Variable that names the folder of a part to the processes it records.
LEFT = "left"  # File of a part whose command has ended, or has no place in the run.
APART = "apart"  # What a process posts that knows of ranks which write into another folder.
REFUSED = "refused"  # What a process posts that finds another run recorded in the folder.
KILLED = "killed"  # What a command posts that kills processes of the run, which did not end when they were asked to.
INTERRUPTED = "interrupted"  # What a script posts when an interrupt ends it.

# Kinds of recordings, in the order in which they are made, and what each is called among the files.
FILES = {"timing": "trace", "device_timing": "device", "attribution": "detail"}
OF_TIMES = ("device_timing", "timing")  # Kinds whose times are used; Nsight Systems can make them.
GRAPH = "graph.json.gz"  # How the name of the file ends that has autograd's graph of one step.
VALUES = "values.json.gz"  # How the name of the file ends that tells which ops compute what has been computed before.
ENDINGS = {"torch": "json.gz", "nsys": "sqlite"}  # How the names of a tracer's files end.


@dataclass(frozen=True)
class Part:
    """What one command records of a run: all, or one machine or rank where each of them starts a command."""

    recording: Path  # The folder of the whole recording.
    name: str = "alone-0"  # Of the run, the same in all its parts, and of this part.

    @staticmethod
    def at(work: Path) -> Part:
        """The part of that working folder."""
        return Part(work.parent.parent, work.name)

    @property
    def run(self) -> str:
        """What tells this run from any other."""
        return self.name.partition("-")[0]

    @property
    def shared(self) -> Path:
        """Working folder of all commands of the run."""
        return self.recording / WORK

    @property
    def work(self) -> Path:
        """Working folder of this command."""
        return self.shared / self.name


@dataclass(frozen=True)
class Plan:
    """How much to record."""

    warmup: int = 10  # Steps that are skipped, at least.
    steps: int = 5  # Steps of the timing recording that can be used.
    memory: bool = False  # Record allocations too.
    tracer: str = "torch"  # What records: "torch" (torch.profiler) or "nsys" (Nsight Systems).
    keep_running: bool = False  # Let the script go on after recording.
    watch: bool = False  # Write a log of the whole run, and record only what is asked for meanwhile.
    every: int = 1  # Of so many steps one is long, as is known before; 1: nothing is known.
    long_step: int = 0  # The number of one of these.
    ranks: str = "auto"  # Which ranks are recorded: "auto", "all" or numbers, as in "0,1,8-15".
    most_ranks: int = MOST  # Of a run of so many all are recorded, unless `ranks` says otherwise.
    most_bytes: int = 200_000_000  # Of one trace, before compression.
    patience_s: float = 60.0  # Of a training that goes on: how long its end waits for ranks that are not done.
    calls_after_s: float = 30.0  # Without any step for so long, calls of the model are counted, too.
    hint_after_s: float = 60.0  # Without any step for so long, the user is told how to mark them.
    window_after_s: float = 120.0  # Without any step for so long, a stretch of time is recorded instead.
    timed: int | None = None  # Time at least so many steps and record none, as an arm of a trial does; None: record.
    timed_s: float = 0.0  # Of such an arm: go on timing for so long, if the script makes that many steps.
    fixes: tuple[str, ...] = ()  # What to inject, as in `Fix.trial`.
    switches: tuple[str, ...] = ()  # What to screen: settings that are turned on and off in the run, best first.
    screen_s: float = 0.0  # How long that may take.
    block_s: float = 0.3  # A block of it, at least (trials.md).
    earlier: tuple[tuple[float, float], ...] = ()  # Of the first of them: pairs of blocks of processes that ended.
    written: tuple[str, ...] = ()  # Of such an arm: files that an earlier run wrote, as in `RankManifest.writes`.

    def tracer_of(self, kind: str) -> str:
        """Stacks and shapes come from torch.profiler: what else there is to know of them, it knows."""
        return self.tracer if kind in OF_TIMES else "torch"

    def write(self, part: Part) -> None:
        """Into the part's working folder."""
        part.work.mkdir(parents=True, exist_ok=True)
        (part.work / "plan.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(part: Part) -> Plan:
        """The plan of a part."""
        said = json.loads((part.work / "plan.json").read_text(encoding="utf-8"))
        return Plan(**said | {name: tuple(said[name]) for name in ("fixes", "switches", "earlier", "written")})
