"""The first lines of a report: how long a step is, and what ran on what."""

from __future__ import annotations

import shlex
from pathlib import PurePath

from diagnose.contracts.diagnosis import Diagnosis, Steps
from diagnose.facts.core.steps import Measure
from diagnose.fixes.frameworks import NAMES
from diagnose.reports.words import infers
from diagnose.trace.manifest import Manifest
from diagnose.trace.units import clipped, duration, percent

MOST_COMMAND = 60  # Characters of the command that ran.


TELLING = 0.01  # Of a step: less of it that comes once an epoch is not named (our choice).


def headline(diagnosis: Diagnosis) -> str:
    """How long a step is, of what that was measured, and what of it the recording does not have."""
    return ". ".join([_step(diagnosis), *_not_recorded(diagnosis.steps)])


def _not_recorded(steps: Steps | None) -> list[str]:
    """What recorded steps lack of those that were timed, as sentences without a full stop."""
    if steps is None:
        return []
    found, other, epoch = list[str](), steps.unrecorded, steps.epoch
    if other is not None:
        more = f"diagnose profile --steps {(other.every or other.timed) + 1}"
        found += [
            f"! {other.long} of {other.timed} timed steps took {other.ratio:.0f} times as long as the others,"
            f" {percent(other.share)} of the time, and the recording missed them",
            f"The others take {duration(steps.usual_step_time_ns or 0)}. To see what stalls, record more: {more}",
        ]
    if epoch is not None:
        parts = {"workers that start anew": epoch.starting_ns, "evaluation, saving and the like": epoch.between_ns}
        for what, ns in parts.items():
            if ns >= TELLING * epoch.steps * epoch.step_ns:
                found.append(f"Once an epoch of {epoch.steps:,} steps: {what}, {duration(ns)}")
    return found


def _step(diagnosis: Diagnosis) -> str:
    """How long a step is, and the recorded ones."""
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
        step_ns = diagnosis.step_ns or time.mean
        taken = "" if duration(step_ns) == duration(time.mean) else f"{duration(time.mean)} as recorded; "
        return f"One {unit} takes {duration(step_ns)}{_of_ranks(diagnosis)} ({taken}{measured})"
    alone, recorded = duration(steps.unprofiled_step_time_ns), duration(time.mean)
    times = f"x {time.mean / max(steps.usual_step_time_ns or 0, 1):.2f}; "
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
