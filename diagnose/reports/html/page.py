"""A Diagnosis as one HTML page: no server, no network, every string of the trace as text."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import plotly.graph_objects as go
from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind
from diagnose.contracts.job import JobSummary
from diagnose.facts.core.base import Missing
from diagnose.failures import Failure, section
from diagnose.replay.job_path import JobPathKind
from diagnose.reports import brief, findings, heading, perfetto, sections
from diagnose.reports import job_tables as jobs
from diagnose.reports.html import cards, job_figures, run_figures, step_figures, style, timeline_figure, work_figures
from diagnose.reports.html.style import MARK_COLOURS, plain
from diagnose.reports.words import OUTCOMES, why_this_rank
from diagnose.trace.units import duration, share

T = TypeVar("T")


class Picture(Struct, Generic[T], frozen=True):
    """A figure with its title, what it is drawn by, and the sentence that says what to see in it."""

    id: str
    title: str
    draw: Callable[[T], go.Figure]
    sentence: Callable[[T], str]


_BAR = partial(step_figures.step_bar, legend=False)  # The page has a legend of its own, which wraps.

STEP = Picture("step", "Where a step's time goes", _BAR, step_figures.step_bar_sentence)
SAVINGS = Picture("savings", "What the fixes would leave", step_figures.savings, step_figures.savings_sentence)
JOB_PATH = Picture("job_path", "Critical path, in order of time", job_figures.job_path, job_figures.job_path_sentence)
JOB = Picture("job_heat", "What each rank does in each step", job_figures.job_heat, job_figures.job_heat_sentence)
SPEED_UPS = Picture("speed_ups", "Predicted and measured", cards.speed_ups, cards.speed_ups_sentence)
PICTURES = (
    Picture("idle", "Why the GPU was idle, by line", step_figures.idle_lines, step_figures.idle_lines_sentence),
    Picture("kernels", "What the work was", work_figures.kernel_tree, work_figures.kernel_tree_sentence),
    Picture("launches", "How far the host was ahead", work_figures.launches, work_figures.launches_sentence),
    Picture("copies", "Copies: size and speed", work_figures.copies, work_figures.copies_sentence),
    Picture("communication", "Communication", run_figures.communication, run_figures.communication_sentence),
    Picture("ranks", "The ranks side by side", run_figures.ranks, run_figures.ranks_sentence),
    Picture("roofline", "How near to the hardware's limit", work_figures.roofline, work_figures.roofline_sentence),
    Picture("memory", "Memory", run_figures.memory, run_figures.memory_sentence),
)


class Panel(Struct, frozen=True):
    """A picture on the page: its sentence, or why it could not be drawn."""

    picture: Picture[Any]
    sentence: str = ""
    missing: str = ""
    how_to_record_it: str = ""
    figure: msgspec.Raw | None = None


class Tile(Struct, frozen=True):
    """A number of a job."""

    label: str
    value: str
    note: str = ""


class JobView(Struct, frozen=True):
    """The first screen of many ranks."""

    tiles: tuple[Tile, ...]
    unit: str  # What its times are of: a step, or the recorded window.
    lead: tuple[str, ...]
    path: sections.Section
    lane: Panel
    heat: Panel
    switches: tuple[str, ...]
    tables: tuple[sections.Section, ...]
    ranks: tuple[job_figures.RankView, ...]
    rank: str  # Whose the rest of the page is.


def render(diagnosis: Diagnosis) -> str:
    """The page. It depends on nothing outside itself, and on nothing but the Diagnosis."""
    with failures.collected() as lost:
        return _rendered(diagnosis, lost)


def _rendered(diagnosis: Diagnosis, lost: list[Failure]) -> str:
    step, savings, *panels = [panel(one, diagnosis) for one in (STEP, SAVINGS, *PICTURES)]
    speed_ups = None if diagnosis.trials is None else panel(SPEED_UPS, diagnosis)
    job, drawn = (
        next(iter(section("the job", _job, diagnosis)), None),
        dict(section("the timeline", _timeline, diagnosis)),
    )
    of_job = () if job is None else (job.lane, job.heat)
    shown = [one for one in (step, savings, speed_ups, *panels, *of_job) if one is not None]
    plotly, plotly_hash = style.plotly_script()
    script = style.text("report.js")
    return style.template("page.html.j2").render(
        diagnosis=diagnosis,
        policy=policy(plotly_hash, style.script_hash(script)),
        style=Markup(style.text("style.css")),
        script=Markup(script),
        plotly=plotly,
        data=style.packed(msgspec.json.encode({"figures": figures(shown), "timeline": drawn.get("lanes")})),
        trace="".join(section("the trace for Perfetto", _trace, diagnosis)),
        subject="".join(section("what ran on what", heading.subject, diagnosis)),
        headline="".join(section("the step time", heading.headline, diagnosis)),
        lost="".join(section("what fixing the faults gives", heading.lost, diagnosis)),
        brief_notes=list(failures.section("notes", lambda: brief.of(diagnosis).notes)),
        job=job,
        tried=next(iter(section("what was tried", _tried, diagnosis)), None),
        speed_ups=speed_ups,
        cards=section("what to fix", cards.shown, diagnosis),
        risks=section("risks", findings.risks, diagnosis),
        risks_heading=findings.RISKS,
        minor=section("minor findings", findings.minor, diagnosis),
        hidden=section("findings that pay once others are fixed", findings.hidden, diagnosis),
        hidden_heading=findings.LATER,
        unchecked=section("what could not be looked at", findings.unchecked, diagnosis),
        notes=diagnosis.integrity,
        crashed=section("rules that failed", findings.crashed, diagnosis),
        checked="".join(section("how many rules ended how", findings.checked, diagnosis)),
        step=step,
        legend=section("the legend", _legend, diagnosis),
        savings=savings,
        timeline=drawn.get("sentence", ""),
        panels=panels,
        outcomes=section("the rules that ran", _outcomes, diagnosis),
        kinds=[(kind.value, OUTCOMES[kind]) for kind in OutcomeKind if _ended(diagnosis, kind)],
        tables=section("tables", sections.sections, diagnosis),
        about=section("what was analysed", _about, diagnosis),
        safe=cards.SAFE,
        left_out=lost,
        part=_part,
    )


def _part(name: str, caller: Callable[[], Markup]) -> Markup:
    """A part of the page: where it fails, the page says so in its place."""
    try:
        return caller()
    except Exception as error:
        return Markup('<p class="alert error">{}</p>').format(str(failures.note(name, error)))


def _trace(diagnosis: Diagnosis) -> str:
    return style.packed(perfetto.render(diagnosis))


def _tried(diagnosis: Diagnosis) -> Iterator[cards.Tried]:
    if diagnosis.trials is not None:
        yield cards.view(diagnosis.trials)


def policy(*scripts: str) -> str:
    """No request to anywhere, no script but ours. plotly styles its elements in place, and saves pictures as data."""
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def _legend(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    try:
        parts = step_figures.parts(diagnosis)
    except Missing:
        return []
    whole = sum(part.ns for part in parts)
    seen = [part for part in parts if part.ns >= step_figures.IN_LEGEND * whole]
    return [(part.colour, part.label, share(part.ns, whole)) for part in seen]


def panel(picture: Picture[T], told: T) -> Panel:
    """A picture of what is told, or why it is not drawn."""
    try:
        return Panel(picture, picture.sentence(told), figure=msgspec.Raw(picture.draw(told).to_json().encode()))
    except Missing as missing:
        return Panel(picture, missing=missing.what, how_to_record_it=missing.how_to_record_it)
    except Exception as error:
        failure = failures.note(f"the figure “{picture.title}”", error)
        return Panel(picture, missing=f"diagnose itself failed ({failure.error})", how_to_record_it=failures.REPORT)


def figures(panels: Iterable[Panel]) -> dict[str, msgspec.Raw]:
    """What the page's script draws, by the pictures' ids."""
    return {one.picture.id: one.figure for one in panels if one.figure is not None}


def _timeline(diagnosis: Diagnosis) -> Iterator[tuple[str, Any]]:
    """`lanes`, which the page's script draws the timeline from, and `sentence`; nothing if there is none."""
    try:
        shown = timeline_figure.drawn(diagnosis)
    except Missing:
        return
    lanes = {
        "frame": msgspec.Raw(timeline_figure.frame(shown).to_json().encode()),
        "dur": shown.dur_ns,
        "most": timeline_figure.MOST_SHOWN,
        "faintest": timeline_figure.FAINTEST,
        "lanes": len(shown.lanes),
        "short": [plain(timeline_figure.short(lane.name)) for lane in shown.lanes],
        "height": timeline_figure.LANE_HEIGHT * len(shown.lanes) + 60,
        "labels": shown.labels,
        "kinds": [{"name": timeline_figure.KIND_WORDS[kind], "colour": MARK_COLOURS[kind]} for kind in shown.kinds],
        "levels": timeline_figure.levels(shown),
        "steps": [shown.bounds_ns, shown.steps],
        "findings": [
            {"number": number, "title": one.title, "spots": one.spots, "count": one.spot_count}
            for number, one in enumerate((finding for finding in diagnosis.findings if not finding.minor), start=1)
        ],
    }
    yield "lanes", lanes
    yield "sentence", timeline_figure.timeline_sentence(diagnosis)


def _job(diagnosis: Diagnosis) -> Iterator[JobView]:
    """What is shown of a job above all that is of one rank; nothing if ranks could not be compared."""
    if diagnosis.job is None:
        return
    path, *tables = sections.job_sections(diagnosis)
    note = " ".join(filter(None, (PATH_NOTE, jobs.clocks(diagnosis.job))))
    yield JobView(
        tiles=tuple(_job_tiles(diagnosis.job)),
        unit=jobs.unit(diagnosis.job),
        lead=tuple(jobs.lead(diagnosis.job)[jobs.mean_wait_ns(diagnosis.job) is not None :]),
        path=replace(path, note=note),
        lane=panel(JOB_PATH, diagnosis),
        heat=panel(JOB, diagnosis),
        switches=tuple(job_figures.switches(diagnosis)),
        tables=tuple(tables),
        ranks=tuple(job_figures.each_rank(diagnosis, diagnosis.job)),
        rank=f"Rank {diagnosis.rank} in detail, {why_this_rank(diagnosis)}",
    )


PATH_NOTE = "The critical path through the ranks: what is not on it can get faster and save nothing."


def _job_tiles(job: JobSummary) -> Iterator[Tile]:
    whole = "the job's mean step" if job.steps else "the recorded window"
    yield Tile(whole, duration(job.step_ns), f"({len(job.ranks):,} ranks)")
    waits = jobs.mean_wait_ns(job)
    least = "at least " * any(rank.unmatched_ns for rank in job.ranks)
    if waits is not None:
        yield Tile(
            "of it a rank waits for others, on average", least + duration(waits), f"({share(waits, job.step_ns)})"
        )
    if (one := jobs.culprit(job)) is not None:
        name, what = jobs.rank_told(job, one.rank.rank), jobs.KINDS[one.kind]
        yield Tile(
            f"the {jobs.unit(job)} waits {duration(one.path_ns)} for its {what}",
            f"{name[:1].upper()}{name[1:]}",
            f"({share(one.path_ns, job.step_ns)})",
        )
    transfers = jobs.by_kind(job).get(JobPathKind.TRANSFER, 0)
    yield Tile(
        f"of it the {jobs.unit(job)} waits for transfers", duration(transfers), f"({share(transfers, job.step_ns)})"
    )


def _ended(diagnosis: Diagnosis, kind: OutcomeKind) -> bool:
    return any(outcome.outcome is kind for outcome in diagnosis.outcomes)


class _Row(Struct, frozen=True):
    code: str
    title: str
    kind: str
    ended: str
    why: str
    how: str
    summary: str
    sections: tuple[tuple[str, str], ...]
    thresholds: tuple[Any, ...]


def _outcomes(diagnosis: Diagnosis) -> Iterator[_Row]:
    """Every rule, those that could not look first after those that found something."""
    pages = {rule.rule: rule for rule in diagnosis.rules}
    order = [OutcomeKind.FOUND, OutcomeKind.CRASHED, OutcomeKind.CANNOT_TELL, OutcomeKind.CLEAN]
    order.append(OutcomeKind.NOT_APPLICABLE)
    for outcome in sorted(diagnosis.outcomes, key=lambda outcome: order.index(outcome.outcome)):
        page = pages.get(outcome.rule)
        yield _Row(
            code=outcome.code,
            title=page.title if page else outcome.rule,
            kind=outcome.outcome.value,
            ended=OUTCOMES[outcome.outcome],
            why=outcome.why,
            how=outcome.how_to_record_it,
            summary=page.summary if page else "",
            sections=cards.sections(page),
            thresholds=page.thresholds if page else (),
        )


def _about(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    provenance = diagnosis.provenance
    manifest = provenance.manifest
    if manifest is not None:
        yield "command", " ".join(manifest.command)
        if manifest.started:
            yield "started", manifest.started
        versions = {**provenance.framework, **manifest.versions}
    else:
        versions = provenance.framework
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if diagnosis.steps is not None:
        numbers = ", ".join(map(str, diagnosis.steps.numbers)) or "none marked"
        found_by = f"; found by {diagnosis.steps.marker}" if diagnosis.steps.marker else ""
        yield "steps used", f"{numbers} (of {diagnosis.steps.recorded} recorded{found_by})"
    for source in provenance.sources[:16]:
        with_detail = f", with {source.detail}" if source.detail else ""
        yield (
            f"rank {source.rank}",
            f"{source.path}: {source.events:,} events; {', '.join(source.recorded)}{with_detail}",
        )
    if len(provenance.sources) > 16:
        yield "and", f"{len(provenance.sources) - 16} more ranks"
    if (quality := diagnosis.replay) is not None:
        off = f"without fitting off by {quality.error_share:+.1%}"
        yield "replay", f"{quality.unexplained_share:.1%} of the step unexplained; {off}"
    yield "diagnose", diagnosis.tool_version
