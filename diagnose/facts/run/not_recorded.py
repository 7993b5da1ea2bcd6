"""What is missing in the middle of a recording, in words: times of which nothing is known, and how to have them."""

from __future__ import annotations

from collections.abc import Iterator

from diagnose.facts.core.base import Facts, once, optional
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.causes import TimeCause
from diagnose.facts.core.host import host_activities
from diagnose.facts.core.recorded import host_recorded
from diagnose.facts.core.steps import steps
from diagnose.trace import intervals
from diagnose.trace.model import Ground, IntegrityNote, Severity
from diagnose.trace.units import duration, percent

WORTH_SHARE = 0.01  # Of the used steps: the last kernels always end a little after the host's last call (our choice).


ONLY_BOUNDS = 0.3
"""Of the used steps: from this share on, what is not recorded leaves bounds and nothing more (as of the replay)."""


@once
def not_recorded(facts: Facts) -> tuple[IntegrityNote, ...]:
    """Notes on times of the used steps in which the host, or work of the device, was not recorded."""
    return (*_host(facts), *_device(facts))


def _host(facts: Facts) -> Iterator[IntegrityNote]:
    activities, used = optional(host_activities, facts), steps(facts)
    if activities is None:
        return
    missing, known = activities[TimeCause.HOST_NOT_RECORDED], host_recorded(facts)
    before = intervals.clip(missing, used.start_ns, known.start_ns).total
    after = intervals.clip(missing, known.end_ns, used.end_ns).total
    says = [
        f"{verb} {duration(ns)} {where}"
        for verb, ns, where in (("begins", before, "after"), ("ends", after, "before"))
        if ns >= WORTH_SHARE * used.window_ns
    ]
    if says:
        how = (
            "Synchronise with the GPU before recording ends." if after >= before else "Start recording a step earlier."
        )
        yield IntegrityNote(
            f"The host's recording {' and '.join(says)} the device's.",
            f"What the host did there is unknown, and no rule judges it. {how}",
            Severity.NOTE,
        )


def _device(facts: Facts) -> Iterator[IntegrityNote]:
    time, used = optional(device_time, facts), steps(facts)
    if time is None or not time.work_not_recorded.size:
        return
    holes = time.work_not_recorded
    share = holes.total / used.window_ns
    yield IntegrityNote(
        f"Graphs, waits or queues show {holes.size:,} hole{'s' * (holes.size > 1)} without recorded kernels: "
        f"{duration(holes.total)}, {percent(share)} of the used steps.",
        "It counts neither as busy nor as idle. Profile with a newer driver and CUPTI, or without graphs.",
        Severity.ERROR if share >= ONLY_BOUNDS else Severity.WARNING,
        (Ground.DEVICE_IDLE,),
    )
