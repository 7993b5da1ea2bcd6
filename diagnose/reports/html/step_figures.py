"""The step in figures: what fills it, why the GPU idles, and what fixes would leave of it."""

import textwrap
from collections import Counter
from itertools import accumulate

import plotly.graph_objects as go
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.facts.core.idle import IdleShare
from diagnose.facts.core.steps import Measure
from diagnose.reports import heading
from diagnose.reports.html import style
from diagnose.reports.sections import place
from diagnose.reports.words import CAUSES, WORK_NOT_RECORDED, threads
from diagnose.trace.units import clipped, clipped_left, duration, share

MOST_LINES = 12
MOST_ROW = 40  # Characters of a label above a bar, on the narrowest screen.
BAR_HEIGHT = 60
IN_LEGEND = 0.01  # Of the step: shorter parts are not in the legend, and say what they are where one points at them.

REASONS = {
    **{cause: f"is {words}" for cause, words in CAUSES.items()},
    TimeCause.HOST_NOT_RECORDED: "falls where the host was not recorded",
    TimeCause.UNKNOWN: "has no recorded cause",
    TimeCause.OTHER_STEPS: "is in longer steps than the recorded ones",
}


class Part(Struct, frozen=True):
    """A part of the step; ns per step."""

    label: str
    ns: int
    colour: str
    said: str  # What a sentence says of it.
    pattern: str = style.HATCHED


def step_bar(diagnosis: Diagnosis, legend: bool = True) -> go.Figure:
    """The mean step as one bar whose parts add up to it, with or without a legend below. Raises Missing if nothing
    could be measured."""
    shown, whole = parts(diagnosis)
    listed = sum(part.ns >= IN_LEGEND * whole for part in shown) * legend
    inside = BAR_HEIGHT + 8 + 20 * listed
    made = style.figure(inside + 40, barmode="stack", bargap=0, uniformtext={"minsize": 10, "mode": "hide"})
    made.update_layout(
        legend={"orientation": "v", "y": 1 - (BAR_HEIGHT + 4) / inside, "yanchor": "top", "traceorder": "normal"}
    )
    made.update_xaxes(range=[0, whole / 1e6], ticksuffix=" ms", separatethousands=True, side="top", fixedrange=True)
    made.update_yaxes(visible=False, fixedrange=True, domain=[1 - BAR_HEIGHT / inside, 1])
    for part in shown:
        of_step = share(part.ns, whole)
        made.add_bar(
            orientation="h",
            name=f"{part.label}, {of_step}",
            x=[part.ns / 1e6],
            y=[0],
            marker={"color": part.colour, "pattern": style.pattern(part.pattern), "line": {"width": 0}},
            text=[f"{part.label}<br>{duration(part.ns)}"],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            hovertext=[f"{part.label}<br>{duration(part.ns)} ({of_step})"],
            hoverinfo="text",
            showlegend=legend and part.ns >= IN_LEGEND * whole,
        )
    return made


def step_bar_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the bar: how much the GPU computes, and the largest other part."""
    shown, whole = parts(diagnosis)
    if diagnosis.breakdown is None:
        largest = max(shown, key=lambda part: part.ns)
        return f"The {threads(diagnosis)} spend {share(largest.ns, whole)} of {_whole(diagnosis)} on {largest.label}."
    computing = diagnosis.breakdown.compute_ns
    head = f"The GPU computes {share(computing, whole)} of {_whole(diagnosis)}"
    others = [part for part in shown if part.colour != style.COMPUTE]
    if not others:
        return f"{head}."
    largest = max(others, key=lambda part: part.ns)
    most = "most" if 2 * largest.ns > whole - computing else "the largest part"
    return f"{head}; {most} of the rest ({duration(largest.ns)}) {largest.said}."


def parts(diagnosis: Diagnosis) -> tuple[list[Part], int]:
    """What the step consists of, without empty parts, and their sum in ns: of the GPU, or of the host where no GPU was
    recorded. Raises Missing if nothing could be measured."""
    whole, host = diagnosis.breakdown, diagnosis.host
    if whole is not None:
        communication = "exposed communication"
        ns = whole.exposed_communication_ns
        found = [
            Part("compute", whole.compute_ns, style.COMPUTE, "", ""),
            Part(communication, ns, style.COMMUNICATION, f"is {communication}", style.CROSSED),
            Part("exposed copies", whole.exposed_copy_ns, style.COPY, "is exposed copies", style.DOTTED),
            *_idle_parts(diagnosis, whole.idle_ns),
            Part(WORK_NOT_RECORDED, whole.work_not_recorded_ns, style.NOT_RECORDED, f"is {WORK_NOT_RECORDED}"),
        ]
    elif host is not None:
        longest = sorted(host.parts.items(), key=lambda item: -item[1])
        found = [Part(CAUSES[one], ns, style.CAUSE_COLOURS[one], "", "") for one, ns in longest]
    else:
        raise style.missing(diagnosis, "breakdown", Missing("device work", "Profile a GPU as well."))
    found = [part for part in found if part.ns]
    if not found:
        raise Missing("time in these steps", "Record longer steps.")
    return found, sum(part.ns for part in found)


def _idle_parts(diagnosis: Diagnosis, idle_ns: int) -> list[Part]:
    """The idle time by cause, as parts of the bar; one part where causes are not known."""
    if diagnosis.idle is None:
        return [Part("idle", idle_ns, style.NO_CAUSE, "is idle time")]
    totals = Counter[TimeCause]()
    for one in diagnosis.idle:
        totals[one.cause] += one.ns
    return [Part(CAUSES[cause], ns, style.CAUSE_COLOURS[cause], REASONS[cause]) for cause, ns in totals.most_common()]


def _whole(diagnosis: Diagnosis) -> str:
    window = diagnosis.steps is not None and diagnosis.steps.measure == Measure.WINDOW
    return "the recorded window" if window else "the step"


def idle_lines(diagnosis: Diagnosis) -> go.Figure:
    """Idle time by cause and source line, longest first. Raises Missing without causes, or without idle time."""
    shown = _idle(diagnosis)[:MOST_LINES]
    made = style.figure(**style.rows([(_idle_label(one), duration(one.ns)) for one in shown]))
    made.update_xaxes(
        title={"text": f"ms{style.per_step(diagnosis)}"}, rangemode="tozero", separatethousands=True, fixedrange=True
    )
    marker = {"color": [style.CAUSE_COLOURS[one.cause] for one in shown], "line": {"width": 0}}
    said = [_idle_hover(one, diagnosis) for one in shown]
    style.add_rows(made, range(len(shown)), [one.ns for one in shown], said, marker)
    return made


def idle_lines_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below: the source line with most idle time, and its cause."""
    shown = _idle(diagnosis)
    most = shown[0]
    where = "has no known line" if most.site is None else f"is at {clipped_left(place(most.site), 100)}"
    amount = f"{duration(most.ns)} of {duration(sum(one.ns for one in shown))} in {_whole(diagnosis)}"
    return f"The most idle time, {amount}, {where}: {CAUSES[most.cause]}."


def _idle(diagnosis: Diagnosis) -> list[IdleShare]:
    """Idle time by cause and line, longest first. Raises Missing without causes, or without idle time."""
    if diagnosis.idle is None:
        how = "Record with ProfilerActivity.CPU as well." if diagnosis.provenance.devices else "No GPU was recorded."
        raise style.missing(diagnosis, "idle", Missing("why the GPU was idle", how))
    found = [one for one in diagnosis.idle if one.ns]
    if not found:
        raise Missing("idle time of the GPU", "There is none in these steps.")
    return found


def _idle_label(one: IdleShare) -> str:
    if one.site is None:
        return style.plain(CAUSES[one.cause], MOST_ROW)
    line = style.plain(clipped_left(place(one.site), MOST_ROW))
    return f'{line}<br><span style="font-size:10px">{CAUSES[one.cause]}</span>'


def _idle_hover(one: IdleShare, diagnosis: Diagnosis) -> str:
    where = [style.plain(place(one.site))] if one.site is not None else []
    amount = f"{duration(one.ns)} ({share(one.share, 1)} of {_whole(diagnosis)})"
    return "<br>".join([CAUSES[one.cause], *where, amount, f"{one.gaps:,} gaps in all used steps"])


def savings(diagnosis: Diagnosis) -> go.Figure:
    """Today's step, what each fix takes away once those above are made, and what is left; numbered as the findings are.
    Raises Missing if no fix is worth a bar."""
    step_ns, fixes = _fixes(diagnosis)
    titles = [f"{one.rank_order}. {one.title}" for one in fixes]
    gains = [one.saving.after_above_ns or 0 for one in fixes]
    bases = list(accumulate(gains, lambda left, gain: max(left - gain, 0), initial=step_ns))[1:]
    left = bases[-1]
    labels = [("today", duration(step_ns))]
    for title, gain in zip(titles, gains, strict=True):
        lines = textwrap.wrap(title, MOST_ROW, max_lines=2, placeholder="…")
        name = "<br>".join(style.plain(line, MOST_ROW) for line in lines)
        labels.append((name, "-" * (gain > 0) + duration(gain)))
    labels.append(("what is left", duration(left)))
    made = style.figure(**style.rows(labels), barmode="overlay")
    made.update_xaxes(
        title={"text": f"ms{style.per_step(diagnosis)}"},
        range=[0, step_ns / 1e6],
        separatethousands=True,
        fixedrange=True,
    )
    whole = [f"today<br>{duration(step_ns)}", f"what is left<br>{duration(left)}"]
    style.add_rows(made, (0, len(labels) - 1), (step_ns, left), whole, {"color": style.DARK})
    said = [
        f"{style.plain(title)}<br>after those above: {duration(gain)} ({share(gain, step_ns)}){_range(one)}"
        for title, gain, one in zip(titles, gains, fixes, strict=True)
    ]
    marker = {"color": style.SAVED, "pattern": style.pattern(style.HATCHED)}
    style.add_rows(made, range(1, len(gains) + 1), gains, said, marker, bases)
    return made


def savings_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the savings: what fixing the faults gives, and the first fix."""
    first = _fixes(diagnosis)[1][0]
    return f'{heading.lost(diagnosis)} The first, "{clipped(first.title, 80)}", saves {duration(first.shown_ns[1])}.'


def _fixes(diagnosis: Diagnosis) -> tuple[int, list[RankedFinding]]:
    """The step in ns, and the findings whose fix shortens it, in order. Raises Missing without any."""
    fixes = [finding for finding in diagnosis.findings if finding.shortens]
    if diagnosis.step_ns is None:
        otherwise = Missing("what fixes would save", "Record with ProfilerActivity.CPU too.")
        raise style.missing(diagnosis, "host_time", otherwise)
    if not fixes:
        raise Missing("fixes worth 1 % of a step", "The rules found none.")
    return diagnosis.step_ns, fixes


def _range(one: RankedFinding) -> str:
    saving = one.saving
    return f"<br>alone: {duration(saving.low_ns)} to {duration(saving.high_ns)}, likely {duration(saving.likely_ns)}"
