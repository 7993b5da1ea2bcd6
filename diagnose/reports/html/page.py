"""A Diagnosis as one HTML page: no server, no network, every string of the trace as text."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec
import plotly.graph_objects as go
from markupsafe import Markup
from msgspec import Struct
from msgspec.structs import replace

from diagnose import failures
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Outcome, OutcomeKind, RulePage
from diagnose.contracts.job import JobSummary
from diagnose.facts.core.base import Missing
from diagnose.failures import Failure, attempt, section
from diagnose.replay.job_path import JobPathKind
from diagnose.reports import brief, findings, heading, job_tables, perfetto, trials
from diagnose.reports import job_words as jobs
from diagnose.reports.html import cards, job_figures, run_figures, step_figures, style, timeline_figure, work_figures
from diagnose.reports.html.style import MARK_COLOURS, plain
from diagnose.reports.words import OUTCOMES, why_this_rank
from diagnose.rulekit.page import SECTIONS
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


def render(diagnosis: Diagnosis) -> str:
    """The page. It depends on nothing outside itself, and on nothing but the Diagnosis."""
    with failures.collected() as lost:
        return _rendered(diagnosis, lost)


def _rendered(diagnosis: Diagnosis, lost: list[Failure]) -> str:
    """The page. `lost` gets the failures of its parts while it is made; the page lists them."""
    step, savings, *panels = [panel(one, diagnosis) for one in (STEP, SAVINGS, *PICTURES)]
    speed_ups = None if diagnosis.trials is None else panel(SPEED_UPS, diagnosis)
    job = attempt("the job", None, _job, diagnosis)
    drawn: dict[str, Any] = attempt("the timeline", {}, _timeline, diagnosis)
    of_job = (job["lane"], job["heat"]) if job else ()
    shown = [one for one in (step, savings, speed_ups, *panels, *of_job) if one is not None]
    return bundle(
        "page.html.j2",
        {"figures": figures(shown), "timeline": drawn.get("lanes")},
        diagnosis=diagnosis,
        trace=attempt("the trace for Perfetto", "", lambda: style.packed(perfetto.render(diagnosis))),
        subject=attempt("what ran on what", "", heading.subject, diagnosis),
        headline=attempt("the step time", "", heading.headline, diagnosis),
        lost=attempt("what fixing the faults gives", "", heading.lost, diagnosis),
        brief_notes=section("notes", lambda: brief.of(diagnosis).notes),
        job=job,
        trials=trials,
        speed_ups=speed_ups,
        cards=section("what to fix", cards.shown, diagnosis),
        risks=section("risks", findings.risks, diagnosis),
        minor=section("minor findings", findings.minor, diagnosis),
        hidden=section("findings that pay once others are fixed", findings.hidden, diagnosis),
        findings=findings,
        unchecked=section("what could not be looked at", findings.unchecked, diagnosis),
        crashed=section("rules that failed", findings.crashed, diagnosis),
        checked=attempt("how many rules ended how", "", findings.checked, diagnosis),
        step=step,
        legend=section("the legend", _legend, diagnosis),
        savings=savings,
        timeline=drawn.get("sentence", ""),
        panels=panels,
        outcomes=section("the rules that ran", _outcomes, diagnosis),
        kinds=[kind for kind in OutcomeKind if any(one.outcome is kind for one in diagnosis.outcomes)],
        words=OUTCOMES,
        headings=SECTIONS,
        tables=section("tables", job_tables.sections, diagnosis),
        about=section("what was analysed", _about, diagnosis),
        safe=cards.SAFE,
        left_out=lost,
        part=_part,
    )


def bundle(template: str, data: Mapping[str, Any], **variables: Any) -> str:
    """A page that opens offline, with its style, scripts and the data of figures; `variables` are the template's."""
    plotly, plotly_hash = style.plotly_script()
    script = style.text("report.js")
    return style.template(template).render(
        policy=policy(plotly_hash, style.script_hash(script)),
        style=Markup(style.text("style.css")),
        script=Markup(script),
        plotly=plotly,
        data=style.packed(msgspec.json.encode(data)),
        **variables,
    )


def _part(name: str, caller: Callable[[], Markup]) -> Markup:
    """What a template's block gives; where that fails, an alert in its place."""
    try:
        return caller()
    except Exception as error:
        return Markup('<p class="alert error">{}</p>').format(str(failures.note(name, error)))


def policy(*scripts: str) -> str:
    """Content security policy: no requests, no script but these; plotly needs styles in place and pictures as data."""
    return (
        f"default-src 'none'; script-src {' '.join(scripts)}; style-src 'unsafe-inline'; img-src data: blob:;"
        " base-uri 'none'; form-action 'none'"
    )


def _legend(diagnosis: Diagnosis) -> list[tuple[str, str, str]]:
    """(colour, label, share) of the parts of the step of IN_LEGEND or more; [] if nothing was measured."""
    try:
        parts, whole = step_figures.parts(diagnosis)
    except Missing:
        return []
    seen = [part for part in parts if part.ns >= step_figures.IN_LEGEND * whole]
    return [(part.colour, part.label, share(part.ns, whole)) for part in seen]


def panel(picture: Picture[T], source: T) -> Panel:
    """A picture drawn from `source`, or why it is not drawn."""
    try:
        return Panel(picture, picture.sentence(source), figure=msgspec.Raw(picture.draw(source).to_json().encode()))
    except Missing as missing:
        return Panel(picture, missing=missing.what, how_to_record_it=missing.how_to_record_it)
    except Exception as error:
        failure = failures.note(f"the figure “{picture.title}”", error)
        return Panel(picture, missing=f"diagnose itself failed ({failure.error})", how_to_record_it=failures.REPORT)


def figures(panels: Iterable[Panel]) -> dict[str, msgspec.Raw]:
    """The figures that could be drawn, as JSON for the page's script, by the pictures' ids."""
    return {one.picture.id: one.figure for one in panels if one.figure is not None}


def _timeline(diagnosis: Diagnosis) -> dict[str, Any]:
    """`lanes`, which the page's script draws the timeline from, and `sentence`; nothing if there is none."""
    try:
        shown = timeline_figure.drawn(diagnosis)
    except Missing:
        return {}
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
            for number, one in findings.worth(diagnosis)
        ],
    }
    return {"lanes": lanes, "sentence": timeline_figure.timeline_sentence(diagnosis)}


PATH_NOTE = "The critical path through the ranks: what is not on it can get faster and save nothing."


def _job(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """What the page's template shows of a job; None if ranks could not be compared."""
    job = diagnosis.job
    if job is None:
        return None
    path, *tables = job_tables.job_sections(diagnosis)
    return {
        "tiles": list(_tiles(job)),
        "unit": jobs.unit(job),
        "lead": jobs.lead(job)[jobs.mean_wait_ns(job) is not None :],  # What a tile says is not said again.
        "path": replace(path, note=" ".join(filter(None, (PATH_NOTE, jobs.clocks(job))))),
        "lane": panel(JOB_PATH, diagnosis),
        "heat": panel(JOB, diagnosis),
        "switches": job_figures.switches(diagnosis),
        "tables": tables,
        "ranks": list(job_figures.each_rank(diagnosis, job)),
        "rank": f"Rank {diagnosis.rank} in detail, {why_this_rank(diagnosis)}",
    }


def _tiles(job: JobSummary) -> Iterator[tuple[str, str, str]]:
    """(label, number, note) of the job's figures on top of the page."""
    unit = jobs.unit(job)
    yield (
        "the job's mean step" if job.steps else "the recorded window",
        duration(job.step_ns),
        f"({len(job.ranks):,} ranks)",
    )
    waits = jobs.mean_wait_ns(job)
    if waits is not None:
        least = "at least " * any(rank.unmatched_ns for rank in job.ranks)
        of_step = f"({share(waits, job.step_ns)})"
        yield "of it a rank waits for others, on average", least + duration(waits), of_step
    if (one := jobs.culprit(job)) is not None:
        label = f"the {unit} waits {duration(one.path_ns)} for its {jobs.KINDS[one.kind]}"
        yield label, jobs.rank_told(job, one.rank.rank).capitalize(), f"({share(one.path_ns, job.step_ns)})"
    transfers = sum(part.ns for part in job.critical_path if part.what is JobPathKind.TRANSFER)
    yield f"of it the {unit} waits for transfers", duration(transfers), f"({share(transfers, job.step_ns)})"


_ORDER = ("found", "crashed", "cannot_tell", "clean", "not_applicable")  # Of rules, by how they ended.


def _outcomes(diagnosis: Diagnosis) -> Iterator[tuple[Outcome, RulePage | None]]:
    """Every rule's outcome and page, in _ORDER; None if the Diagnosis has no page of it."""
    pages = {rule.rule: rule for rule in diagnosis.rules}
    for outcome in sorted(diagnosis.outcomes, key=lambda outcome: _ORDER.index(outcome.outcome)):
        yield outcome, pages.get(outcome.rule)


def _about(diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """(label, text) rows on the recording and the analysis: command, versions, used steps, files, replay."""
    provenance = diagnosis.provenance
    versions = provenance.framework
    if (manifest := provenance.manifest) is not None:
        yield "command", " ".join(manifest.command)
        if manifest.started:
            yield "started", manifest.started
        versions = {**versions, **manifest.versions}
    if versions:
        yield "versions", ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    if diagnosis.steps is not None:
        numbers = ", ".join(map(str, diagnosis.steps.numbers)) or "none marked"
        found_by = f"; found by {diagnosis.steps.marker}" if diagnosis.steps.marker else ""
        yield "steps used", f"{numbers} (of {diagnosis.steps.recorded} recorded{found_by})"
    for source in provenance.sources[:16]:
        with_detail = f", with {source.detail}" if source.detail else ""
        recorded = f"{source.events:,} events; {', '.join(source.recorded)}"
        yield f"rank {source.rank}", f"{source.path}: {recorded}{with_detail}"
    if len(provenance.sources) > 16:
        yield "and", f"{len(provenance.sources) - 16} more ranks"
    if (quality := diagnosis.replay) is not None:
        off = f"without fitting off by {quality.error_share:+.1%}"
        yield "replay", f"{quality.unexplained_share:.1%} of the step unexplained; {off}"
    yield "diagnose", diagnosis.tool_version
