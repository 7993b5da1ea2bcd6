"""The first lines of a report: how long a step is, and what ran on what."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from diagnose.contracts.diagnosis import Diagnosis, Steps
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.timed_steps import Epoch
from diagnose.fixes.frameworks import NAMES
from diagnose.reports.words import infers
from diagnose.trace.manifest import Manifest
from diagnose.trace.units import clipped, duration, percent

MOST_COMMAND = 60  # Characters of the command that ran.


BETWEEN = "what is between epochs, such as evaluation, saving and the end of workers"

MUCH = 0.1  # Of an epoch between its steps: as much is said of any recording (our choice).
TELLING = 0.01  # Of an epoch: less of it that recorded steps lack is not named (our choice).


def headline(diagnosis: Diagnosis) -> str:
    """How long a step is, and of what that was measured. Of an epoch that recorded steps do not stand for, its own."""
    recorded, epoch, steps = _recorded_steps(diagnosis), diagnosis.unlike_epoch, diagnosis.steps
    if epoch is None or steps is None:
        return recorded + _between(steps)
    unit = "iteration" if infers(diagnosis) else "step"
    whole = f"One {unit} takes {duration(epoch.step_ns)} on average over a whole epoch of {epoch.steps:,} {unit}s"
    return f"{whole}. {_of_epoch(epoch, steps.used)} In them {recorded[:1].lower()}{recorded[1:]}"


def _of_epoch(epoch: Epoch, used: int) -> str:
    """Where the recorded steps are, of which so many are used, and what they lack, as sentences."""
    if epoch.begun:
        more = ", which is more often than on average" if epoch.begun * epoch.steps > used else ""
        return f"An epoch begins in the recorded steps {_often(epoch.begun)}{more}."
    where = "The recorded steps are in an epoch"
    if epoch.first is not None and epoch.last is not None:
        where = f"The recorded steps are {epoch.first:,} to {epoch.last:,} of an epoch"
    parts = {"workers that start anew": epoch.starting_ns, BETWEEN: epoch.between_ns}
    whole_ns = epoch.steps * epoch.step_ns
    lacking = [
        f"{what} ({duration(ns)} an epoch, {percent(ns / whole_ns)})"
        for what, ns in parts.items()
        if ns >= TELLING * whole_ns
    ]
    return f"{where}." + (f" Not in them: {' and '.join(lacking)}." if lacking else "")


def _between(steps: Steps | None) -> str:
    """How much of an epoch is between its steps, as a sentence; empty if that is little, or no epoch was seen."""
    epoch = None if steps is None else steps.epoch
    if epoch is None:
        return ""
    ns, whole_ns = epoch.between_ns + epoch.starting_ns, epoch.steps * epoch.step_ns
    if ns < MUCH * whole_ns:
        return ""
    return f". Of an epoch of {epoch.steps:,} steps {percent(ns / whole_ns)} ({duration(ns)}) is {BETWEEN}"


def _often(times: int) -> str:
    return "once" if times == 1 else f"{times} times"


def _recorded_steps(diagnosis: Diagnosis) -> str:
    """How long a step is where it was recorded."""
    steps = diagnosis.steps
    if steps is None:
        return "Nothing in this recording could be measured."
    time = steps.step_time_ns
    unit = "iteration" if infers(diagnosis) else "step"
    spread = f"{duration(time.min)} to {duration(time.max)}"
    if steps.measure == Measure.WINDOW:
        return f"No steps are marked; the recorded window is {duration(time.mean)}"
    measured = f"mean of {steps.used} of {steps.recorded} recorded, {spread}"
    if steps.measure == Measure.ONE_STEP or steps.used == 1:
        measured = "only one could be measured"
    if steps.unprofiled_step_time_ns is None and diagnosis.job is not None:
        whole, over = duration(diagnosis.job.step_ns), len(diagnosis.job.steps)
        return f"One {unit} of the job takes {whole} ({len(diagnosis.job.ranks):,} ranks, mean of {over} recorded)"
    if steps.unprofiled_step_time_ns is None:
        return f"One {unit} takes {duration(time.mean)}{_of_ranks(diagnosis)} ({measured})"
    alone, recorded = duration(steps.unprofiled_step_time_ns), duration(time.mean)
    times = f"x {time.mean / max(steps.unprofiled_step_time_ns, 1):.2f}; "
    if steps.size_ratio != 1.0 and steps.overhead_ratio is not None:
        times = f"{steps.size_ratio:.2g} times the work; x {steps.overhead_ratio:.2f} for as much; "
    return f"One {unit} takes {alone} without the profiler; recorded {recorded} ({times}{measured})"


def _of_ranks(diagnosis: Diagnosis) -> str:
    """Whose step it is, where ranks differ."""
    means = [rank.step_time_ns.mean for rank in diagnosis.ranks if rank.step_time_ns is not None]
    if len(means) < 2 or duration(min(means)) == duration(max(means)):
        return ""
    return f" on rank {diagnosis.rank} (on all ranks {duration(min(means))} to {duration(max(means))})"


_DEVICES = {"cpu": "CPU only", "cuda": "NVIDIA GPU", "rocm": "AMD GPU", "unknown": "device of an unknown maker"}


def subject(diagnosis: Diagnosis) -> str:
    """What ran on what."""
    provenance = diagnosis.provenance
    names = sorted({device.name for device in provenance.devices if device.name})
    device = ", ".join(names) or _DEVICES[provenance.backend]
    ranks = len(diagnosis.ranks)
    world = f" of {provenance.world_size}" if provenance.world_size else ""
    inference = ["inference"] if infers(diagnosis) else []
    which = f"rank {diagnosis.rank}{world}" if ranks == 1 else f"{ranks} ranks{world}"
    versions = [f"{name.replace('_', ' ')} {version}" for name, version in sorted(provenance.framework.items())]
    owner = "" if diagnosis.program is None else NAMES.get(diagnosis.program.loop, "")
    run = [*_recorded_run(provenance.manifest), *([owner] if owner else [])]
    return " · ".join([*run, device, which, *inference, *versions[:2], *_measured(diagnosis)])


def _measured(diagnosis: Diagnosis) -> list[str]:
    """How many changed ops were measured."""
    found = diagnosis.measured
    if found is None:
        return []
    of = f" of {found.ops + found.not_measured:,}" * bool(found.not_measured)
    ops = f"op{'s' * (found.ops + found.not_measured != 1)}"
    return [f"{found.ops:,}{of} changed {ops} measured on this machine, {found.seconds:.0f} s"]


def _recorded_run(manifest: Manifest | None) -> list[str]:
    """The command without the interpreter, and torch's version, where they are known."""
    if manifest is None:
        return []
    words = manifest.command[1:] if "python" in PurePath(manifest.command[0] if manifest.command else "").name else ()
    command = clipped(shlex.join(words or manifest.command), MOST_COMMAND)
    torch = manifest.versions.get("torch")
    return [part for part in (command, f"torch {torch}" if torch else "") if part]
