"""What to record, and where: written by the command that starts the run, read by every process of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from .place import MOST

WORK = ".work"  # Folder in the recording for what processes and commands tell each other; gone once it is complete.
RECORDING = "DIAGNOSE_RECORDING"  # Variable that names the working folder of a part to the processes it records.
LEFT = "left"  # File in the working folder of a part whose command has ended, or is not recorded.
APART = "apart"  # What a process posts that knows of ranks whose commands write into another folder.
REFUSED = "refused"  # What a process posts that finds another run recorded in the folder.
KILLED = "killed"  # What a command posts that kills processes of the run, which did not end when they were asked to.
INTERRUPTED = "interrupted"  # What a script posts when an interrupt ends it.

# Kinds of recordings, in the order in which they are made, and what each is called among the files.
FILES = {"timing": "trace", "device_timing": "device", "attribution": "detail"}
OF_TIMES = ("device_timing", "timing")  # Kinds whose times are used; Nsight Systems can make them.
GRAPH = "graph.json.gz"  # How the name of the file ends that has autograd's graph of one step.
VALUES = "values.json.gz"  # The same of the file that says which ops compute values again.
ENDINGS = {"torch": "json.gz", "nsys": "sqlite"}  # How the names of a tracer's files end.


@dataclass(frozen=True)
class Part:
    """What one command records of a run: all, or one machine or rank where each of them starts a command."""

    recording: Path  # The folder of the whole recording.
    name: str = "alone-0"  # The run's name, a hyphen, and what tells this part from the run's others.

    @staticmethod
    def at(work: Path) -> Part:
        """The part whose working folder, `Part.work`, this is."""
        return Part(work.parent.parent, work.name)

    @property
    def run(self) -> str:
        """The name of the run: the same in all its parts, and another in every other run."""
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
    every: int = 1  # One step in so many is long, if that is known before the run; 1: not known.
    long_step: int = 0  # The number of one long step.
    ranks: str = "auto"  # Which ranks are recorded: "auto", "all" or numbers, as in "0,1,8-15".
    most_ranks: int = MOST  # Of up to so many ranks, "auto" records all.
    most_bytes: int = 200_000_000  # Of one trace, before compression.
    patience_s: float = 60.0  # How long the leader waits for ranks that have not finished recording.
    calls_after_s: float = 30.0  # Without any step for so long, calls of the model are counted, too.
    hint_after_s: float = 60.0  # Without any step for so long, the user is told how to mark them.
    window_after_s: float = 120.0  # Without any step for so long, a stretch of time is recorded instead.
    timed: int | None = None  # Time at least so many steps and record none, as an arm of a trial does; None: record.
    timed_s: float = 0.0  # An arm times as many steps as fit this time, if these are more than `timed`.
    fixes: tuple[str, ...] = ()  # What to inject, as in `Fix.trial`.
    switches: tuple[str, ...] = ()  # What to screen: settings that are turned on and off in the run, best first.
    screen_s: float = 0.0  # How long screening may take.
    block_s: float = 0.3  # The least length of a block of steps in screening (docs/trying-fixes.md).
    earlier: tuple[tuple[float, float], ...] = ()  # Step times (without, with) of `switches[0]`, of ended processes.
    written: tuple[str, ...] = ()  # Of an arm: files that the recorded run wrote, as `RankManifest.writes`.

    def tracer_of(self, kind: str) -> str:
        """What makes this kind of recording: the plan's tracer for times; torch.profiler for stacks and shapes."""
        return self.tracer if kind in OF_TIMES else "torch"

    def write(self, part: Part) -> None:
        """Write the plan into the part's working folder, which is made if it is missing."""
        part.work.mkdir(parents=True, exist_ok=True)
        (part.work / "plan.json").write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(part: Part) -> Plan:
        """The plan in a part's working folder. Raises OSError if there is none."""
        fields = json.loads((part.work / "plan.json").read_text(encoding="utf-8"))
        return Plan(**fields | {name: tuple(fields[name]) for name in ("fixes", "switches", "earlier", "written")})
