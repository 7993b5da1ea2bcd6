"""The job in figures: what each rank does in each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from diagnose.facts.core.base import Missing
from diagnose.findings.diagnosis import Diagnosis
from diagnose.findings.job import JobSummary
from diagnose.reports.html.style import HEAT, figure
from diagnose.reports.job import rank_told
from diagnose.trace.units import duration

MOST_COLUMNS = 128
"""Ranks, or bands of ranks, beside each other: each some pixels wide on a large screen."""
MOST_TEXTS = 48
"""Cells that hold their number."""

MOST_LABELS = 8
"""Bands that are named by their first rank."""
COMPUTE, WAITING = "compute", "waiting for others"

Values = npt.NDArray[np.float64]


def job_heat(diagnosis: Diagnosis) -> go.Figure:
    """Ranks beside each other, steps below each other: compute, and waiting, of which one is shown at a time.

    Of more ranks than there are columns, each column shows the most compute and the least waiting of several: those
    that others wait for. Raises Missing without a job.
    """
    job = _job(diagnosis)
    steps = len(job.compute_ns[0])
    made = figure(min(26 * steps, 260) + 74, margin={"l": 8, "r": 8, "t": 4, "b": 8})
    size = _band(job)
    axis = "ranks" if size > 1 else "rank"
    names = [_name(job, at, size) for at in range(0, len(job.ranks), size)]
    made.update_xaxes(title={"text": axis}, type="category", showgrid=False, fixedrange=True)
    if size > 1:
        labelled = names[:: -(-len(names) // MOST_LABELS)]
        made.update_xaxes(tickvals=labelled, ticktext=[one.split(" ")[0] for one in labelled])
    made.update_yaxes(
        title={"text": "step"},
        autorange="reversed",
        showgrid=False,
        fixedrange=True,
        type="category",
    )
    for what, values in _shown(job, size).items():
        made.add_heatmap(
            name=what,
            x=names,
            y=list(map(str, job.steps)) or ["window"],
            z=values,
            visible=what == COMPUTE,
            colorscale=HEAT,
            colorbar={"title": {"text": "ms"}, "thickness": 8, "outlinewidth": 0, "len": 1, "nticks": 4},
            hovertemplate=f"{axis} %{{x}}, step %{{y}}<br>{what}: %{{z:.4~g}} ms<extra></extra>",
            texttemplate="%{z:.3~g}" if values.size <= MOST_TEXTS else None,
            xgap=1 if len(names) <= MOST_TEXTS else 0,
            ygap=1,
        )
    return made


def switches(diagnosis: Diagnosis) -> list[str]:
    """What the figure can show, in the order of its traces."""
    job = diagnosis.job
    return list(_shown(job, _band(job))) if job is not None else []


def job_heat_sentence(diagnosis: Diagnosis) -> str:
    """What to see in it."""
    job = _job(diagnosis)
    most = max(job.ranks, key=lambda one: one.compute_ns)
    text = f"{rank_told(job, most.rank).capitalize()} computes most, {duration(most.compute_ns)} a step"
    waits = [one for one in job.ranks if one.wait_ns is not None]
    if waits:
        least = min(waits, key=lambda one: one.wait_ns or 0)
        who = " and" if least is most else f"; {rank_told(job, least.rank)}"
        text += f"{who} waits least, {duration(least.wait_ns or 0)}"
    size = _band(job)
    return f"{text}." + (f" A column shows {size} ranks: their most compute, their least waiting." if size > 1 else "")


def _job(diagnosis: Diagnosis) -> JobSummary:
    if diagnosis.job is None:
        raise Missing("several ranks", "Record each rank, and analyze their traces together.")
    return diagnosis.job


def _band(job: JobSummary) -> int:
    """How many ranks a column stands for."""
    return -(-len(job.ranks) // MOST_COLUMNS)


def _name(job: JobSummary, at: int, size: int) -> str:
    last = min(at + size, len(job.ranks)) - 1
    first = str(job.ranks[at].rank)
    return first if last == at else f"{first} to {job.ranks[last].rank}"


def _shown(job: JobSummary, size: int) -> dict[str, Values]:
    """In ms, of shape (steps, columns)."""
    found = {COMPUTE: _columns(job, job.compute_ns, size, np.fmax.reduceat)}
    if any(row is not None for row in job.wait_ns):
        found[WAITING] = _columns(job, job.wait_ns, size, np.fmin.reduceat)
    return found


def _columns(
    job: JobSummary, rows: Sequence[tuple[int, ...] | None], size: int, of_several: Callable[..., Values]
) -> Values:
    unknown = (np.nan,) * len(job.compute_ns[0])
    values = np.array([unknown if row is None else row for row in rows], dtype=np.float64) / 1e6
    found: Values = of_several(values, np.arange(0, len(rows), size), axis=0).T
    return found
