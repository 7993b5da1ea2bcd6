"""The job in figures: what each rank does in each step, and what the step waits for in order of time."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.job import JobSummary
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import TimeCause
from diagnose.replay.job_path import JobPathKind, JobPathStretch
from diagnose.reports.html.style import CAUSE_COLOURS, COMMUNICATION, COMPUTE, DARK, HEAT, figure
from diagnose.reports.job_tables import RANK_COLUMNS, rank_cells
from diagnose.reports.job_words import KINDS, operation, rank_told, unit
from diagnose.reports.sections import place
from diagnose.reports.words import CAUSES
from diagnose.trace.units import duration, share

MOST_COLUMNS = 128  # Ranks, or bands of ranks, beside each other: each some pixels wide on a large screen.
MOST_TEXTS = 48  # Cells that hold their number.
MOST_LABELS = 8  # Bands that are named by their first rank.
COMPUTING, WAITING = "compute", "waiting for others"

Values = npt.NDArray[np.float64]

MOST_LANES = 12  # Ranks with a lane of their own; the others share one.
LANE_HEIGHT = 24
OTHERS, BETWEEN = "other ranks", "between ranks"
PATH_COLOURS = {
    JobPathKind.COMPUTE: COMPUTE,
    JobPathKind.HOST: CAUSE_COLOURS[TimeCause.PYTHON],
    JobPathKind.TRANSFER: COMMUNICATION,
    JobPathKind.UNMATCHED: CAUSE_COLOURS[TimeCause.OTHER_RANK],
    JobPathKind.UNEXPLAINED: DARK,
}


def job_path(diagnosis: Diagnosis) -> go.Figure:
    """What the last step waits for, from left to right, in a lane per rank. Raises Missing without a job."""
    job = _job(diagnosis)
    lanes = path_lanes(job)
    made = figure(LANE_HEIGHT * len(lanes) + 74, margin={"l": 8, "r": 8, "t": 4, "b": 8}, barmode="overlay")
    made.update_xaxes(title={"text": f"ms since the {unit(job)} began"}, rangemode="tozero")
    made.update_yaxes(type="category", categoryorder="array", categoryarray=lanes[::-1], fixedrange=True)
    for kind, colour in PATH_COLOURS.items():
        some = [one for one in job.path_lane if one.what is kind]
        if some:
            made.add_bar(
                name=KINDS[kind],
                orientation="h",
                base=[one.from_ns / 1e6 for one in some],
                x=[one.ns / 1e6 for one in some],
                y=[_lane(job, one, lanes) for one in some],
                marker={"color": colour, "line": {"width": 0}},
                customdata=[[operation(one.operation) if one.operation else KINDS[kind]] for one in some],
                hovertemplate="%{y}: %{customdata[0]}<br>%{x:.4~g} ms from %{base:.4~g} ms on<extra></extra>",
            )
    return made


def path_lanes(job: JobSummary) -> list[str]:
    """Labels of lanes from the top: the MOST_LANES ranks that hold the path longest, by number; then shared lanes."""
    total = Counter[int]()
    for one in job.path_lane:
        if one.rank is not None:
            total[one.rank] += one.ns
    most = sorted(sorted(total, key=lambda rank: (-total[rank], rank))[:MOST_LANES])
    shared = [OTHERS] * (len(total) > MOST_LANES) + [BETWEEN] * any(one.rank is None for one in job.path_lane)
    return [rank_told(job, rank) for rank in most] + shared


def _lane(job: JobSummary, one: JobPathStretch, lanes: list[str]) -> str:
    name = BETWEEN if one.rank is None else rank_told(job, one.rank)
    return name if name in lanes else OTHERS


def job_path_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the path: how often it goes from one rank to another."""
    job = _job(diagnosis)
    hops = sum(a.rank != b.rank for a, b in pairwise(one for one in job.path_lane if one.rank is not None))
    which = "the last recorded step" if job.steps else "the recorded window"
    several = len({one.rank for one in job.critical_path if one.rank is not None}) > 1
    times = f"at least {hops:,} times" if hops > 1 else "at least once"  # Short pieces are not in the lane.
    moved = f"goes from one rank to another {times}" if several else "stays on one rank"
    return f"The critical path of {which}, from left to right: it {moved}."


def job_heat(diagnosis: Diagnosis) -> go.Figure:
    """A column per rank, a row per step: compute, and waiting, of which one is shown at a time. Of more ranks than
    MOST_COLUMNS, each column shows the most compute and the least waiting of several: those that others wait for.
    Raises Missing without a job."""
    job = _job(diagnosis)
    made = figure(min(26 * len(job.compute_ns[0]), 260) + 74, margin={"l": 8, "r": 8, "t": 4, "b": 8})
    size = _ranks_per_column(job)
    axis = "ranks" if size > 1 else "rank"
    bands = [job.ranks[at : at + size] for at in range(0, len(job.ranks), size)]
    names = [str(some[0].rank) + f" to {some[-1].rank}" * (len(some) > 1) for some in bands]
    made.update_xaxes(title={"text": axis}, type="category", showgrid=False, fixedrange=True)
    if size > 1:
        labelled = names[:: -(-len(names) // MOST_LABELS)]
        made.update_xaxes(tickvals=labelled, ticktext=[one.split(" ")[0] for one in labelled])
    made.update_yaxes(title={"text": "step"}, autorange="reversed", showgrid=False, fixedrange=True, type="category")
    for what, values in _shown(job, size).items():
        made.add_heatmap(
            name=what,
            x=names,
            y=list(map(str, job.steps)) or ["window"],
            z=values,
            visible=what == COMPUTING,
            colorscale=HEAT,
            colorbar={"title": {"text": "ms"}, "thickness": 8, "outlinewidth": 0, "len": 1, "nticks": 4},
            hovertemplate=f"{axis} %{{x}}, step %{{y}}<br>{what}: %{{z:.4~g}} ms<extra></extra>",
            texttemplate="%{z:.3~g}" if values.size <= MOST_TEXTS else None,
            xgap=1 if len(names) <= MOST_TEXTS else 0,
            ygap=1,
        )
    return made


def switches(diagnosis: Diagnosis) -> list[str]:
    """Names of what `job_heat` can show, one at a time, in the order of its traces."""
    job = _job(diagnosis)
    return list(_shown(job, _ranks_per_column(job)))


def job_heat_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the heat map: which rank computes most, and which waits least."""
    job = _job(diagnosis)
    most = max(job.ranks, key=lambda rank: rank.compute_ns)
    text = f"{rank_told(job, most.rank).capitalize()} computes most, {duration(most.compute_ns)} a step"
    if waits := [rank for rank in job.ranks if rank.wait_ns is not None]:
        least = min(waits, key=lambda rank: rank.wait_ns or 0)
        who = " and" if least is most else f"; {rank_told(job, least.rank)}"
        text += f"{who} waits least, {duration(least.wait_ns or 0)}"
    size = _ranks_per_column(job)
    return f"{text}." + f" A column shows {size} ranks: their most compute, their least waiting." * (size > 1)


def _job(diagnosis: Diagnosis) -> JobSummary:
    if diagnosis.job is None:
        raise Missing("several ranks", "Record each rank, and analyze their traces together.")
    return diagnosis.job


def _ranks_per_column(job: JobSummary) -> int:
    return -(-len(job.ranks) // MOST_COLUMNS)


def _shown(job: JobSummary, size: int) -> dict[str, Values]:
    """By name, compute and waiting in ms (row: step; column: `size` ranks); waiting only if known of any rank."""
    found = {COMPUTING: _columns(job, job.compute_ns, size, np.fmax.reduceat)}
    if any(row is not None for row in job.wait_ns):
        found[WAITING] = _columns(job, job.wait_ns, size, np.fmin.reduceat)
    return found


def _columns(
    job: JobSummary, rows: Sequence[tuple[int, ...] | None], size: int, of_several: Callable[..., Values]
) -> Values:
    """Values in ms with a row per step and a column per `size` ranks, which `of_several` reduces to one."""
    unknown = (np.nan,) * len(job.compute_ns[0])
    values = np.array([unknown if row is None else row for row in rows], dtype=np.float64) / 1e6
    found: Values = of_several(values, np.arange(0, len(rows), size), axis=0).T
    return found


MOST_ACTIVITIES = 4
MOST_FINDINGS = 5
LEAST = 0.01  # Of the step, for an activity (our choice).


class RankView(Struct, frozen=True):
    """What is shown of a rank when it is chosen."""

    number: int
    name: str  # With its stages in a pipeline.
    times: tuple[tuple[str, str], ...]  # (what, how long) of its mean step.
    host: str  # What its training threads do; "" if that is not known.
    findings: tuple[tuple[str, str], ...]  # (title, source line or "") of what is found on it alone.


def each_rank(diagnosis: Diagnosis, job: JobSummary) -> Iterator[RankView]:
    """The ranks of the job of which the Diagnosis has a summary, in order."""
    summaries = {rank.rank: rank for rank in diagnosis.ranks}
    for one in job.ranks:
        if one.rank in summaries:
            found = summaries[one.rank].findings[:MOST_FINDINGS]
            yield RankView(
                number=one.rank,
                name=rank_told(job, one.rank).capitalize(),
                times=tuple(zip(RANK_COLUMNS, rank_cells(one), strict=True)),
                host=_host(summaries[one.rank]),
                findings=tuple((said.title, "" if said.site is None else place(said.site)) for said in found),
            )


def _host(summary: RankSummary) -> str:
    if (host := summary.host) is None:
        return ""
    ranked = sorted(host.parts.items(), key=lambda pair: -pair[1])[:MOST_ACTIVITIES]
    shown = [f"{CAUSES[activity]} {share(ns, host.step_ns)}" for activity, ns in ranked if ns >= LEAST * host.step_ns]
    return ", ".join(shown)
