"""An arm: a fresh process of the user's command, with fixes or none, that times its steps and ends."""

import math
import os
import re
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from diagnose.capture.agent.injection import NO_LINE
from diagnose.capture.agent.plan import Part, Plan
from diagnose.capture.doctor import CannotRecord
from diagnose.capture.run import OVERDUE, Recorded, end_orphans, prepare, run
from diagnose.contracts.trials import Losses, Verdict
from diagnose.fixes.catalogue import parsed
from diagnose.fixes.models import Compile, CompileArgument
from diagnose.fixes.setting import Setting
from diagnose.statistics import waited_share
from diagnose.trace.manifest import DeviceState, Manifest, RankManifest
from diagnose.trials.selection import CannotTry

FIRST = 10  # Losses that are compared where they are not equal: later ones multiply the differences (our choice).
ROUNDING = 1e-5  # Difference in the first steps up to which it is rounding, of the greatest loss (trials.md).


def compared(without: Sequence[float], again: Sequence[float], changed: Sequence[float]) -> Losses | None:
    """How losses change with the fix (`changed`), given those of two arms of the script as it is; None without any."""
    if not without or not again or not changed:
        return None
    if all(one.hex() == other.hex() for some in (again, changed) for one, other in zip(without, some, strict=False)):
        return "same"
    own = _difference(without, again)
    if own > ROUNDING:
        return "not_deterministic"
    return "rounding" if _difference(without, changed) <= max(ROUNDING, own) else "differ"


def _difference(some: Sequence[float], others: Sequence[float]) -> float:
    """The greatest difference of the FIRST losses, as a share of the greatest loss; infinite if one is no number.
    A loss that falls to almost nothing has rounding of the size of what it fell from."""
    pairs = list(zip(some[:FIRST], others[:FIRST], strict=False))
    unequal = [(one, other) for one, other in pairs if one.hex() != other.hex()]
    if any(not (math.isfinite(one) and math.isfinite(other)) for one, other in unequal):
        return math.inf
    scale = max(abs(loss) for pair in pairs for loss in pair if math.isfinite(loss))
    return max((abs(one - other) / scale for one, other in unequal), default=0.0)


QUIET = {  # Variables by which experiment trackers stay offline.
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "MLFLOW_TRACKING_URI": "",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "offline",
    "CLEARML_OFFLINE_MODE": "1",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
}
WARMUP, TIMED, TIMED_S = 10, 10, 2.0  # Steps to skip, at least; steps to time, at least, and for how long (our choice).
START_S = 10.0  # What a start of Python and torch may take, until one has been seen (our choice).
PATIENCE = 3.0  # Times what an arm is expected to take, after which it is ended (trials.md).
LEAST_S = 10.0  # That an arm is expected to take, however short it was: starts of Python differ (our choice).
COMPILING_S = 120.0  # More patience for that (our choice).
UNKNOWN_S = 60.0  # More patience for the first arm: nothing tells yet what starting takes here (our choice).
LAST_BYTES = 16384  # Of what a script has printed, that are looked at for an error (our choice).
TORCHRUN = "ChildFailedError"  # What torchrun ends with, and a table, when a rank has failed.
ENDED = 0.75  # Share of the steps that were timed before a script ended, that are timed again (our choice).
UNTIMED = 3  # Steps of a run that none can time: one begins the clock, one warms up, one ends the last.
_RAISED = re.compile(r"(?:\[rank\d+\]: ?)?([\w.]*(?:Error|Exception)\b.*)")

HEAT = frozenset({"HwSlowdown", "SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown"})
"""What holds a GPU's clock back for a while, by NVML's names. At its power limit every run of a training may be."""


class Size(Struct, frozen=True):
    """How many steps an arm makes, and how long it takes."""

    warmup: int
    timed: int
    timed_s: float  # Go on for so long if the script does; 0 once it is known how many steps that are.
    expected_s: float


class Arm(Struct, frozen=True):
    """What an arm has measured: times of its slowest rank, and memory of the rank with most."""

    step_ns: float  # Mean over the timed steps; where fixes enlarge the batch, of as many samples as without them.
    steps: int
    first_step: int
    warmup_s: float
    peak_bytes: int | None
    losses: tuple[float, ...]
    injected: tuple[str, ...]  # Where fixes took effect, on any rank.
    seconds: float  # From its start to its end.
    gpu: DeviceState | None = None  # The first machine's that draws most power after that; None without NVML.
    held_back_by: tuple[str, ...] = ()  # Of HEAT, on any GPU of that machine.
    reread: tuple[str, ...] = ()  # Files that it read, and an earlier run had written.
    waited: float = 0.0  # Share of its steps in which the training could run and got no CPU; 0 where a device is timed.


class Void(Exception):
    """An arm that measured nothing; the message is a sentence. `made`: steps of a script that ended by itself."""

    def __init__(self, verdict: Verdict, why: str, made: int = 0) -> None:
        super().__init__(why)
        self.verdict, self.made = verdict, made


def first_size(manifest: Manifest) -> Size:
    """The size of the first run, from the recording: its warm-up if that made steps steady, and its timed steps."""
    timed, warmup, cycle, took_s = TIMED, WARMUP, 1, 0.0
    for rank in manifest.ranks[:1]:
        cycle = rank.cycle
        if rank.warm_up is not None and rank.unprofiled is not None:
            skipped = len(rank.warm_up.wall_ns)
            warmup = skipped if rank.steady else min(WARMUP, skipped)
            timed = min(TIMED, len(rank.unprofiled.wall_ns))
            took_s = (sum(rank.warm_up.wall_ns) + sum(rank.unprofiled.wall_ns)) / 1e9
    return Size(warmup, cycle * math.ceil(timed / cycle), TIMED_S, START_S + max(took_s, TIMED_S))


def next_size(size: Size, arm: Arm) -> Size:
    """The size of arms after the first: as many steps as it timed; fewer if its script ended before `timed_s` was over,
    as warm-ups differ in length."""
    ended = arm.steps * arm.step_ns < ENDED * size.timed_s * 1e9
    return replace(size, timed=math.ceil((ENDED if ended else 1) * arm.steps), timed_s=0.0, expected_s=arm.seconds)


def whole_size(size: Size, made: int) -> Size:
    """The size of arms of a script that makes few steps (`made`): all that can be timed, without a warm-up."""
    return replace(size, warmup=0, timed=made - UNTIMED)


def run_arm(command: Sequence[str], folder: Path, size: Size, fixes: Sequence[str], written: Sequence[str] = ()) -> Arm:
    """Run one in a folder that is new. Raises Void, KeyboardInterrupt, or CannotTry if the command does not start.
    `written`: what an earlier run has written, as in `RankManifest.writes`."""
    settings = _settings(fixes)
    plan = Plan(
        warmup=size.warmup,
        steps=1,
        timed=size.timed,
        timed_s=size.timed_s,
        fixes=tuple(one.name for one in settings),
        written=tuple(written),
    )
    compiles = any(isinstance(one, Compile | CompileArgument) for one in settings)
    limit_s = PATIENCE * max(size.expected_s, LEAST_S) + COMPILING_S * compiles + UNKNOWN_S * (size.timed_s > 0)
    begun_s = time.monotonic()
    recorded = run_quietly(command, folder, plan, fixes, limit_s)
    if {signal.SIGINT, signal.SIGTERM} & set(recorded.signals):
        raise KeyboardInterrupt
    ranks = recorded.manifest.ranks
    if not ranks or any(rank.unprofiled is None for rank in ranks):
        raise void(recorded, limit_s)
    for setting in settings:
        # Those that did what it changes, as only one may save checkpoints; all if none did.
        changed = [rank for rank in ranks if rank.arm is not None and rank.arm.injected.get(setting.name)] or ranks
        if why := next(filter(None, (why_none(setting, rank) for rank in changed)), ""):
            raise Void("not_injected", f"{why[0].upper()}{why[1:]}.")
    return _measured(ranks, recorded.manifest.devices, batch_factor(fixes), time.monotonic() - begun_s)


def batch_factor(fixes: Sequence[str]) -> int:
    """How many times as many samples a step has with these fixes."""
    return math.prod(setting.batch_factor for setting in _settings(fixes))


def _settings(fixes: Sequence[str]) -> list[Setting]:
    return [setting for name in fixes if (setting := parsed(name)) is not None]


def why_none(setting: Setting, rank: RankManifest) -> str:
    """A clause on why the setting is not in force in a process; empty if it is."""
    if rank.arm is None or not rank.arm.injected.get(setting.name):
        why = "" if rank.arm is None else rank.arm.refused.get(setting.name, "")
        return why or NO_LINE
    return setting.took_effect(rank)


def run_quietly(
    command: Sequence[str],
    folder: Path,
    plan: Plan,
    fixes: Sequence[str],
    limit_s: float,
    look: Callable[[Part], None] = lambda part: None,
) -> Recorded:
    """Run a command without input, its output in a file beside the folder, and experiment trackers offline.
    `look(part)` is called about every half second. Raises CannotTry if it does not start."""
    environment = {**QUIET, **dict(pair for setting in _settings(fixes) for pair in setting.variables)}
    try:
        part = prepare(folder, plan, command)
        try:
            with _printed(folder).open("wb") as output:
                return run(command, part, plan, lambda said: None, environment, output, limit_s, lambda: look(part))
        except KeyboardInterrupt:  # Where the run has not begun to listen for it.
            end_orphans(part)
            raise
    except CannotRecord as error:
        raise CannotTry(str(error)) from error


def _printed(folder: Path) -> Path:
    return folder.with_suffix(".log")


def _measured(ranks: Sequence[RankManifest], devices: Sequence[DeviceState], factor: int, seconds: float) -> Arm:
    """What a run measured: times of its slowest rank, per step of the usual batch (`factor` times as many samples)."""
    timed = [rank.unprofiled for rank in ranks if rank.unprofiled is not None]
    slowest = max(timed, key=lambda one: statistics.fmean(one.device_ns or one.wall_ns))
    said = [rank.arm for rank in ranks if rank.arm is not None]
    step_ns = statistics.fmean(slowest.device_ns or slowest.wall_ns)
    return Arm(
        step_ns=step_ns / factor,
        steps=len(slowest.wall_ns),
        first_step=slowest.first_step,
        warmup_s=slowest.began_s or 0.0,
        peak_bytes=max((one.peak_bytes for one in said if one.peak_bytes is not None), default=None),
        losses=tuple(map(float.fromhex, said[0].losses)),
        injected=tuple(dict.fromkeys(line for one in said for lines in one.injected.values() for line in lines)),
        seconds=seconds,
        gpu=max((device for device in devices if device.power_w), key=lambda one: one.power_w or 0, default=None),
        held_back_by=tuple(sorted(HEAT & {why for device in devices for why in device.throttled_by or ()})),
        reread=_reread(ranks),
        waited=0.0 if slowest.device_ns else waited_share(slowest.waited_ns or 0, step_ns),
    )


def void(recorded: Recorded, limit_s: float) -> Void:
    """Why an arm has timed nothing."""
    code, last = recorded.exit_code, last_line(_printed(recorded.folder))
    if OVERDUE in recorded.signals:
        late = f"diagnose stopped the script after {limit_s:.0f} s, far more than expected. {busy()}"
        return Void("inconclusive", late.rstrip())
    if "out of memory" in last.lower() or "OutOfMemoryError" in last:
        return Void("out_of_memory", f"The script ran out of memory: {last}")
    if code:
        asked = ". The runs get no standard input." if "EOF" in last else ""
        return Void("inconclusive", f"The script ended with exit code {code}: {last or 'no output'}{asked}")
    made = max((rank.steps_made or 0 for rank in recorded.manifest.ranks), default=0)
    if not made:
        return Void("inconclusive", "The script ended before its first training step.")
    resumes = resuming(_reread(recorded.manifest.ranks))
    return Void("inconclusive", f"The script ended after {made} steps: too few to time. {resumes}".rstrip(), made)


def _reread(ranks: Sequence[RankManifest]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for rank in ranks if rank.arm is not None for name in rank.arm.reread))


def resuming(reread: Sequence[str]) -> str:
    """Sentences on a script that may go on where an earlier run of it ended; empty if it reads nothing of that run."""
    if not reread:
        return ""
    more = f" and {len(reread) - 1} more files" if len(reread) > 1 else ""
    return (
        f"The script reads {reread[0]}{more} from an earlier run. If it resumes from there, runs train different steps."
        " Give a command that starts from scratch: diagnose try RUN -- COMMAND..."
    )


def busy() -> str:
    """A sentence on other work of this machine; empty if it does little else."""
    load, cpus = (os.getloadavg()[1] if hasattr(os, "getloadavg") else 0.0), os.cpu_count() or 1
    return f"The machine is busy: its load is {load:.1f} on {cpus} CPUs." if load > cpus + 1 else ""


def last_line(printed: Path) -> str:
    """The last that the script has printed, in at most 200 characters; of ranks, the last error before torchrun's."""
    with printed.open("rb") as file:
        file.seek(max(0, printed.stat().st_size - LAST_BYTES), os.SEEK_SET)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines()]
    last = next((line for line in reversed(lines) if line and not line.startswith("diagnose:")), "")
    if last.strip("=-") == "":
        raised = (found[1] for line in reversed(lines) if (found := _RAISED.fullmatch(line)))
        last = next((one for one in raised if TORCHRUN not in one), last)
    return last[:200]
