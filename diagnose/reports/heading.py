"""The head of every report: what ran on what, how long a step is, what bounds it, and what fixing the faults gives."""

import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis, Steps
from diagnose.contracts.finding import Kind, OutcomeKind, RankedFinding, Together
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.steps import Measure
from diagnose.fixes.frameworks import NAMES
from diagnose.replay.saving import Basis
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED, infers, listed
from diagnose.trace.manifest import Manifest
from diagnose.trace.units import clipped, duration, rounded_share

MOST_COMMAND, MOST_TITLE = 60, 80  # Characters of the command that ran, and of the title of an option.
TELLING = 0.01  # Of the step: less profiler overhead, and less time once an epoch, is not named (our choice).
BUSY = 0.8  # Share of the step that the GPU computes, from which on the step is GPU-bound (our choice).
CAUSE = 0.1  # Of the step, from which on a cause bounds it (our choice).

BOUND = {
    TimeCause.COMMUNICATION: "communication-bound",
    TimeCause.COPY: "copy-bound",
    TimeCause.HOST_COPY: "copy-bound",
    TimeCause.LOADER: "data-loader-bound",
    TimeCause.OPS: "launch-bound",
    TimeCause.LAUNCH: "launch-bound",
    TimeCause.OPTIMIZER: "launch-bound",
    TimeCause.PYTHON: "host-bound",
    TimeCause.HOST_COMPUTE: "host-bound",
    TimeCause.SYNC: "synchronisation-bound",
    TimeCause.OTHER_RANK: "bound by other ranks",
}
"""What a step is called by its largest loss; others are named by the cause alone."""

_COMPUTING = (TimeCause.OPS, TimeCause.HOST_COMPUTE, TimeCause.OPTIMIZER)  # Of a CPU that trains.
ON_CPU = {
    **dict.fromkeys(_COMPUTING, "compute-bound on the CPU"),
    TimeCause.PYTHON: "Python-bound",
    TimeCause.LOADER: "data-loader-bound",
    TimeCause.OTHER_RANK: "bound by other ranks",
}
"""What a step is called by its largest part where the CPU trains."""

_ACTIVE = (TimeCause.COMMUNICATION, TimeCause.COPY)  # The GPU does something then, and does not compute.

_DEVICES = {"cpu": "CPU only", "cuda": "NVIDIA GPU", "rocm": "AMD GPU", "unknown": "device of an unknown maker"}


class Segment(Struct, frozen=True):
    """A part of the step's bar."""

    label: str
    ns: int
    fill: str  # A character of a bar.


def subject(diagnosis: Diagnosis) -> str:
    """What ran on what, and how many steps of it were recorded."""
    provenance = diagnosis.provenance
    names = sorted({device.name for device in provenance.devices if device.name})
    device = ", ".join(names) or _DEVICES[provenance.backend]
    world = f" of {provenance.world_size}" if provenance.world_size and provenance.world_size > 1 else ""
    which = f"{len(diagnosis.ranks):,} ranks{world}" if len(diagnosis.ranks) > 1 else ""
    if len(diagnosis.ranks) == 1 and (world or diagnosis.rank > 0):
        which = f"rank {diagnosis.rank}{world}"
    owner = "" if diagnosis.program is None else NAMES.get(diagnosis.program.loop, "")
    versions = [f"{name.replace('_', ' ')} {version}" for name, version in sorted(provenance.framework.items())]
    if provenance.manifest is not None and (torch := provenance.manifest.versions.get("torch")):
        versions = [f"torch {torch.partition('+')[0]}"]
    parts = (_command(provenance.manifest), owner, device, which, "inference" * infers(diagnosis), *versions[:1])
    return " · ".join(filter(None, (*parts, *_recorded(diagnosis.steps))))


def _command(manifest: Manifest | None) -> str:
    """The recorded command without the Python interpreter, clipped; empty without a manifest."""
    words = () if manifest is None else manifest.command
    if words[1:] and "python" in PurePath(words[0]).name:
        words = words[1:]
    return clipped(shlex.join(words), MOST_COMMAND)


def _recorded(steps: Steps | None) -> Iterator[str]:
    """How many steps were used, recorded and timed, and the profiler's overhead if TELLING; nothing of a window."""
    if steps is None or steps.measure == Measure.WINDOW:
        return
    of = f" of {steps.recorded} recorded" * (steps.recorded != steps.used)
    timed = f" + {steps.unrecorded.timed} timed" if steps.unrecorded else ""
    yield f"{steps.used}{of}{timed} step{'s' * (bool(of or timed) or steps.used != 1)}"
    mean = steps.step_time_ns.mean
    ratio = mean / (steps.usual_step_time_ns or mean) if steps.size_ratio == 1.0 else steps.overhead_ratio or 1.0
    if ratio - 1 >= TELLING:
        yield f"profiler overhead {rounded_share(ratio - 1)}"


def headline(diagnosis: Diagnosis) -> str:
    """How long a step is, and what bounds it."""
    steps = diagnosis.steps
    if steps is None:
        return "Nothing in this recording could be measured."
    whole = duration(step_ns(diagnosis))
    window = steps.measure == Measure.WINDOW
    took = f"{whole} in the recorded window; no steps are marked" if window else f"{whole}/{unit(diagnosis)}"
    return " · ".join(filter(None, (took, _bound(diagnosis))))


def unit(diagnosis: Diagnosis) -> str:
    """What a report counts: a step, or an iteration of inference."""
    return "iteration" if infers(diagnosis) else "step"


def step_ns(diagnosis: Diagnosis) -> int:
    """The step time in ns that shares and savings of a report refer to; 0 without steps."""
    if diagnosis.steps is None:
        return 0
    if diagnosis.job is not None and diagnosis.steps.unprofiled_step_time_ns is None:
        return diagnosis.job.step_ns
    return diagnosis.step_ns or diagnosis.steps.step_time_ns.mean


def _bound(diagnosis: Diagnosis) -> str:
    """What the step is bound by; empty if that is not known."""
    whole, losses = diagnosis.breakdown, _losses(diagnosis)
    if whole is None:
        return _bound_on_cpu(diagnosis)
    of_step = whole.step_ns or 1
    computing, idle = whole.compute_ns / of_step, rounded_share(whole.idle_ns / of_step)
    flops = diagnosis.flops
    mfu = "" if flops is None or flops.mfu is None else f", at {rounded_share(flops.mfu)} MFU"
    ns, cause = max(((ns, cause) for cause, ns in losses.items()), default=(0, TimeCause.UNKNOWN))
    if computing >= BUSY or ns < CAUSE * of_step:
        runs = f"kernels run {rounded_share(computing)} of the time{mfu}"
        return f"GPU-bound: {runs}" if computing >= BUSY else runs
    label = CAUSES[cause]
    if cause in _ACTIVE:
        takes = "takes" if cause is TimeCause.COMMUNICATION else "take"
        return f"{BOUND[cause]}: exposed {label} {takes} {rounded_share(ns / of_step)} of the {unit(diagnosis)}"
    idles = f"GPU idle {idle} of the time ({label} {rounded_share(ns / of_step)})"
    return f"{BOUND[cause]}: {idles}" if cause in BOUND else idles


def _bound_on_cpu(diagnosis: Diagnosis) -> str:
    """What takes most of a step on the CPU, with its share; empty if that is not known."""
    host = diagnosis.host
    if host is None or not any(host.parts.values()):
        return ""
    totals = Counter[str]()
    for cause, ns in host.parts.items():
        totals[ON_CPU.get(cause, CAUSES[cause])] += ns
    ((name, ns),) = totals.most_common(1)
    return f"{name} ({rounded_share(ns / max(host.step_ns, 1))} of the time)"


def _losses(diagnosis: Diagnosis) -> Counter[TimeCause]:
    """ns of a step in which the GPU does not compute, by cause."""
    losses, whole = Counter[TimeCause](), diagnosis.breakdown
    if whole is not None:
        losses[TimeCause.COMMUNICATION] = whole.exposed_communication_ns
        losses[TimeCause.COPY] = whole.exposed_copy_ns
    for one in diagnosis.idle or ():
        losses[one.cause] += one.ns
    return losses


def bar(diagnosis: Diagnosis) -> list[Segment]:
    """What the step consists of, without empty parts: of the GPU, or of the CPU where no GPU was recorded."""
    whole, host = diagnosis.breakdown, diagnosis.host
    if whole is None:
        parts = Counter[TimeCause](host.parts if host else {}).most_common()
        found = [Segment(CAUSES[cause], ns, "█" if cause in _COMPUTING else "░") for cause, ns in parts]
    else:
        losses = _losses(diagnosis).most_common()
        idle = [Segment(f"idle: {CAUSES[cause]}", ns, "░") for cause, ns in losses if cause not in _ACTIVE]
        found = [
            Segment("compute", whole.compute_ns, "█"),
            Segment("communication", whole.exposed_communication_ns, "▓"),
            Segment("memcpy", whole.exposed_copy_ns, "▒"),
            *(idle or [Segment("idle", whole.idle_ns, "░")]),
            Segment(WORK_NOT_RECORDED, whole.work_not_recorded_ns, "░"),
        ]
    return [one for one in found if one.ns]


def lost(diagnosis: Diagnosis) -> str:
    """The sentences of `gain` as one paragraph."""
    return " ".join(f"{one.removesuffix('.')}." for one in gain(diagnosis))


def gain(diagnosis: Diagnosis) -> list[str]:
    """What fixing the faults gives, then what the options add: one or two sentences; none if no rule ran."""
    if not diagnosis.outcomes or diagnosis.steps is None:
        return []
    if diagnosis.replay is None:
        return ["The steps could not be simulated: no saving is known, and no finding is listed."]
    shown = [one for one in diagnosis.findings if not one.minor]
    faults = [one for one in shown if one.kind is Kind.FAULT and one.shortens]
    options = [one for one in shown if one.kind is Kind.OPTION]
    first = _of_faults(diagnosis, faults) if faults else _no_fault(diagnosis)
    if not options and not any(one.hidden for one in diagnosis.findings):
        return [first]
    return [first, _of_others(diagnosis, options, shown)]


def _of_faults(diagnosis: Diagnosis, faults: list[RankedFinding]) -> str:
    """What fixing all faults gives, those of medium or high confidence first, as a sentence."""
    replay, before = diagnosis.replay, step_ns(diagnosis)
    assert replay is not None
    sure = sum(one.sure for one in faults)
    every = _after(diagnosis, replay.faults_together)
    if not sure:
        which = "1 fault" if len(faults) == 1 else f"{len(faults)} faults, {'both' if len(faults) == 2 else 'all'}"
        return f"{which} of low confidence: {_change(before, every, diagnosis)}"
    several = f"Fix {sure} fault{'s' * (sure > 1)}: {_change(before, _after(diagnosis, replay.together), diagnosis)}"
    more = len(faults) - sure
    if not more:
        return several
    return f"{several}. With {'one' if more == 1 else more} more of low confidence: → {duration(every)}"


def _after(diagnosis: Diagnosis, saved: Together | None) -> int:
    return step_ns(diagnosis) - (saved.likely_ns if saved else 0)


def _change(before: int, after: int, diagnosis: Diagnosis) -> str:
    """`88.5 → 28.0 ms/step (3.2x faster)` of two step times in ns."""
    new = duration(after)
    old = duration(before).removesuffix(f" {new.rpartition(' ')[2]}")
    bounded = any(one.saving.basis is Basis.BOUNDED and not one.minor for one in diagnosis.findings)
    faster = before / max(after, 1)
    times = f"{faster:.2g}x faster" if faster >= 1.15 else f"{rounded_share(1 - after / max(before, 1))} less"
    return f"{old} → {new}/{unit(diagnosis)} ({times}{', at best' * bounded})"


def _no_fault(diagnosis: Diagnosis) -> str:
    """The sentence in place of a gain: no fault was found, and how many rules could not look."""
    blind = sum(outcome.outcome is OutcomeKind.CANNOT_TELL for outcome in diagnosis.outcomes)
    limit = f", but {blind} of {len(diagnosis.outcomes)} rules could not look (see NOTES)" * bool(blind)
    small = " of 1 % or more" * any(one.minor for one in diagnosis.findings)
    return f"No fault{small} was found{limit}."


def _of_others(diagnosis: Diagnosis, options: list[RankedFinding], shown: list[RankedFinding]) -> str:
    """What options and LATER findings save on top of all faults, as a sentence that names the largest of them."""
    assert diagnosis.replay is not None
    timed = [one for one in options if one.shortens]
    later = ["what comes LATER"] * any(one.hidden for one in diagnosis.findings)
    if not timed and not later:
        largest = max(options, key=lambda one: one.shown_ns[1])
        return f"Option {shown.index(largest) + 1}: {largest.title}, −{rounded_share(largest.share_of_step)} per sample"
    among = [str(shown.index(one) + 1) for one in timed]
    options_too = [f"option{'s' * (len(timed) > 1)} {listed(among)}"] if timed else []
    too = " as well" * any(one.kind is Kind.FAULT and one.shortens for one in shown)
    after = duration(_after(diagnosis, diagnosis.replay.all_together))
    with_all = f"With {' and '.join([*options_too, *later])}{too}: → {after}/{unit(diagnosis)}"
    others = [*timed, *(one for one in diagnosis.findings if one.hidden)]
    largest = max(others, key=lambda one: one.shown_ns[1])
    if len(shown) == 1 and not too:
        return f"{with_all}: {largest.title}"
    saves = f"{largest.title}, −{duration(largest.shown_ns[1])}"
    which = "LATER" if largest.hidden else f"option {shown.index(largest) + 1}"
    if too and all(one.shown_ns[1] <= largest.shown_ns[1] for one in shown):
        return f"The largest gain is {which}{f': {saves}' * (len(others) > 1)}. {with_all}"
    return with_all if len(others) == 1 else f"{with_all}; most by {which}: {saves}"


def incomplete(diagnosis: Diagnosis) -> str:
    """That rules failed, as a sentence; empty if none did."""
    failed = sum(outcome.outcome is OutcomeKind.CRASHED for outcome in diagnosis.outcomes)
    several, look = ("rules", "they look") if failed > 1 else ("rule", "it looks")
    return f"{failed} {several} failed by a bug in diagnose: what {look} for is not in this report." if failed else ""
