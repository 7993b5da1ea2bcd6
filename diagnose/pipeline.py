"""The story of an analysis, and the page to read first: paths -> ranks -> facts -> findings -> Diagnosis.

What happens on the way, and where something new goes:

    paths      `source/` finds which files are a rank's and reads them as tables: a trace format is a
               reader there, listed in `source/ranks.py`.
    facts      `facts/` measures a rank, each fact when it is first asked for: a measurement is a function there.
    findings   `rulekit/` asks each rule what it finds in the facts: a rule is a Python file in the
               folder of its family in `rules/`.
               `replay/` says what each fix would save; `advice/` drops fixes in force and ranks the rest.
               `timeline/` draws the shown rank.
    Diagnosis  the one value that `reports/` show: a figure of the report is a function in
               `reports/html/`, listed in its `page.py`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from diagnose import failures
from diagnose.advice import assembly, fixes_of_run, merging, outcomes, ranking
from diagnose.advice.assembly import job_summary
from diagnose.advice.pricing import Step
from diagnose.advice.rank_diagnosis import (
    RankBrief,
    RankDiagnosis,
    in_brief,
    measured_sections,
    outline,
    shared,
    shown_risks,
)
from diagnose.contracts.diagnosis import Diagnosis, note_of
from diagnose.contracts.finding import Finding, ReplayQuality, RuleName
from diagnose.costs.book import rest_on_measurements, wanted
from diagnose.costs.changes import Recost
from diagnose.costs.measured import Wanted
from diagnose.facts.communication.peers import compared
from diagnose.facts.core.base import Facts, Failed, Missing, optional
from diagnose.facts.core.run import trains_on_cpu
from diagnose.facts.core.steps import steps
from diagnose.facts.run.program import older_than, program
from diagnose.facts.run.timed_steps import epoch, slowdown
from diagnose.failures import attempt
from diagnose.replay.critical_path import path_parts
from diagnose.replay.job_saving import baseline
from diagnose.replay.saving import Basis, Replay
from diagnose.rulekit import engine
from diagnose.rulekit.engine import Examined, LoadedRule, RuleSet
from diagnose.rulekit.vocabulary import RuleError
from diagnose.source import arrangement, processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.timeline import drawing
from diagnose.timeline.drawing import timeline
from diagnose.timeline.pictures import pictures
from diagnose.trace.model import Ground, IntegrityNote, Peers, Severity
from diagnose.version import __version__

StepRange: TypeAlias = tuple[int, int]
Found: TypeAlias = tuple[RuleName, Finding]
Progress: TypeAlias = Callable[[int, int], None]


def diagnose(
    paths: Sequence[str | Path] | Recordings,
    step_range: StepRange | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
    rules: RuleSet | None = None,
    cluster: str | None = None,
) -> Diagnosis:
    """Diagnose the run in `paths`, or what was found there, with up to `jobs` processes (default 1).

    `progress` gets (done, total) files. `cluster`: the address of a Dask scheduler, or "local" for `jobs` workers here.
    Raises InputError if a named file, or all files of a folder, cannot be read, and RuleError if the rules cannot.
    """
    run = paths if isinstance(paths, Recordings) else recording.find(paths)
    rules = rules or RuleSet()
    with failures.collected() as lost:
        pages = [engine.shown(rule) for rule in engine.load(rules)]
        in_full = partial(of_files, present, step_range=step_range, rules=rules)
        if len(run.ranks) == 1:
            shown, briefs, notes = _of_one(run.ranks[0], in_full, progress)
        else:
            brief = partial(brief_of_files, step_range=step_range, rules=rules, count=len(run.ranks))
            in_briefs = partial(processes.results, brief, jobs=jobs or 1, cluster=cluster)
            shown, briefs, notes = _of_many(run.ranks, in_briefs, in_full, progress)
        notes = [*run.integrity, *notes]
        whole = assembly.of_ranks(shown, briefs, notes, __version__, run.manifest, pages, run.trials)
    return replace(whole, integrity=(*whole.integrity, *map(note_of, lost)))


InFull: TypeAlias = Callable[..., RankDiagnosis]
InBriefs: TypeAlias = Callable[[Sequence[RankFiles]], Iterable[tuple[int, RankBrief | InputError]]]
Ranks: TypeAlias = tuple[RankDiagnosis, list[RankBrief], list[IntegrityNote]]
"""The rank that is shown, all ranks in brief by number, and notes on what is wrong with their files."""


def _of_one(files: RankFiles, in_full: InFull, progress: Progress) -> Ranks:
    """The only rank in full, its brief, and notes on the recording."""
    shown = in_full(files)
    progress(1, 1)
    arranged = arrangement.arrange([shown.provenance], [()])
    shown = _with(shown, rank=arranged.indexes[0] or 0)
    return shown, [in_brief(shown, 1)], list(arranged.integrity)


def _of_many(files: Sequence[RankFiles], in_briefs: InBriefs, in_full: InFull, progress: Progress) -> Ranks:
    """All ranks in brief; then the one that the others wait for, or else the slowest, in full."""
    read, notes = _readable(files, in_briefs(files), progress)
    if len({brief.provenance.timed_by is None for brief in read.values()}) > 1:  # Times of different steps.
        files = [one.without("device") for one in files]
        read, notes = _readable(files, in_briefs(files), progress)
        notes.append(WITH_OPS)
    while True:
        times = [brief.steps.times_ns if brief.steps else () for brief in read.values()]
        arranged = arrangement.arrange([brief.provenance for brief in read.values()], times)
        position = {rank: at for rank, at in zip(arranged.indexes, read, strict=True) if rank is not None}
        briefs = {rank: replace(read[position[rank]], index=rank) for rank in sorted(position)}
        sequences = {rank: brief.sequence for rank, brief in briefs.items()}
        others, left_out = attempt("the comparison of ranks", (None, []), compared, sequences)
        awaited = None if others is None else others.awaited
        index = assembly.slowest(list(briefs.values())).index if awaited is None else awaited
        peers = others.peers(index) if others is not None and index in others.job.ranks else None
        try:
            shown = in_full(files[position[index]], index=index, others=peers)
        except InputError as error:  # It was readable a moment ago.
            del read[position[index]]
            if files[position[index]].trace.named or not read:
                raise
            notes.append(ranks.unreadable(error))
        else:
            briefs[index] = in_brief(shown, len(files))
            return shown, list(briefs.values()), [*arranged.integrity, *left_out, *notes]


WITH_OPS = IntegrityNote(
    "Ranks are compared in steps in which ops were recorded, which takes the host time.",
    "Of some ranks the steps without ops show other work.",
    Severity.WARNING,
    (Ground.HOST_TIMES,),
)


def _readable(
    files: Sequence[RankFiles], results: Iterable[tuple[int, RankBrief | InputError]], progress: Progress
) -> tuple[dict[int, RankBrief], list[IntegrityNote]]:
    """Briefs by the position of their files, and notes on those of a folder that cannot be read. Raises InputError."""
    read, lost, known = dict[int, RankBrief](), dict[int, InputError](), dict[object, Any]()
    for done, (at, result) in enumerate(results, start=1):
        if isinstance(result, RankBrief):
            read[at] = shared(_with_paths(result, files[at]), known)
        elif files[at].trace.named:
            raise result
        else:
            lost[at] = result
        progress(done, len(files))
    notes = [ranks.unreadable(lost[at]) for at in sorted(lost)]
    if not read:
        raise InputError(notes[0].what)
    return {at: read[at] for at in sorted(read)}, notes


def _with_paths(brief: RankBrief, files: RankFiles) -> RankBrief:
    """The brief with the paths that the user gave, in place of the absolute ones that a cluster's workers read."""
    detail = brief.provenance.detail and str(files.beside["detail"])
    return replace(brief, provenance=replace(brief.provenance, path=str(files.trace.path), detail=detail))


def brief_of_files(
    files: RankFiles, step_range: StepRange | None, rules: RuleSet, count: int
) -> RankBrief | InputError:
    """One of `count` ranks in brief, or why it cannot be read; runs in a process of its own, so little is raised."""
    try:
        return in_brief(of_files(study, files, step_range, rules), count)
    except InputError as error:
        return error
    except RuleError:
        raise
    except Exception as error:
        if failures.raised():
            raise
        alone = f"{failures.DEBUG}=1 diagnose analyze {files.trace.path}"
        return InputError(
            f"diagnose itself failed on {files.trace.path} ({type(error).__name__}). Please report {alone}"
        )


def of_files(
    analyse: Callable[[Facts, Sequence[LoadedRule]], RankDiagnosis],
    files: RankFiles,
    step_range: StepRange | None,
    rules: RuleSet,
    index: int | None = None,
    others: Peers | None = None,
) -> RankDiagnosis:
    """The diagnosis of one rank by `analyse`. `index`: the rank's number, if known by now. Raises InputError."""
    rank = recording.read(files)
    if index is not None:
        rank = replace(rank, index=index, peers=others)
    facts = Facts(rank, step_range)
    if step_range is not None:
        try:
            steps(facts)
        except Missing as missing:
            raise InputError(f"{files.trace.path} has no {missing.what}. {missing.how_to_record_it}") from None
    with failures.collected() as lost:
        diagnosis = analyse(facts, engine.load(rules))
    return _with(diagnosis, integrity=(*diagnosis.sections.integrity, *map(note_of, lost)))


def _with(rank: RankDiagnosis, /, **sections: Any) -> RankDiagnosis:
    return replace(rank, sections=replace(rank.sections, **sections))


class Analysis(Struct, frozen=True):
    """What the rules find on a rank, and what that costs."""

    examined: Examined
    replay: Replay | Missing
    findings: Sequence[Found] = ()  # Without fixes that are in force.
    order: ranking.Ranked = ranking.NOTHING
    step: Step | None = None  # The step that savings are of.


def study(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """What has to be known of every rank of a job: its steps, its collectives, what the rules find on it."""
    return _with_findings(facts, outline(facts), _analysis(facts, rules))


def present(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """All that a Diagnosis says of the rank that it shows. Where no step can be replayed, it has no findings."""
    analysis = _analysis(facts, rules)
    rank = _with(outline(facts), **measured_sections(facts))
    if (step := analysis.step or optional(Step.of, facts)) is not None:
        rank = replace(rank, sections=step.figures(rank.sections))
    rank = _with_findings(facts, rank, analysis)
    order = analysis.order
    return _with(
        rank,
        steps=assembly.steps_of(rank, optional(slowdown, facts), optional(epoch, facts)),
        findings=attempt("places on the timeline", order.findings, drawing.on_timeline, facts, order),
        timeline=optional(timeline, facts),
        pictures=optional(pictures, facts),
        critical_path=optional(path_parts, facts),
        job=optional(job_summary, facts),
        measured=assembly.measured_ops(facts.rank.measured),
        **_replayed(facts, analysis),
    )


def _with_findings(facts: Facts, rank: RankDiagnosis, analysis: Analysis) -> RankDiagnosis:
    """The rank's diagnosis with its findings and risks, and with notes on what rules caution against."""
    sections = outcomes.in_sections(rank.sections, facts)
    return _with(
        replace(rank, sections=sections),
        integrity=(*sections.integrity, *map(engine.note, analysis.examined.cautions)),
        findings=analysis.order.findings,
        risks=shown_risks(analysis.examined.risks, facts.rank.index),
    )


def _replayed(facts: Facts, analysis: Analysis) -> dict[str, Any]:
    """The sections `outcomes` (how each rule ended) and `replay` (how well the step was replayed; None: not at all)."""
    before, findings, quality = analysis.examined.outcomes, analysis.examined.findings, None
    if isinstance(analysis.replay, Missing):
        ended = outcomes.unpriced(before, findings, analysis.replay)
    else:
        order = analysis.order
        ended = outcomes.priced(before, findings, analysis.findings, order)
        quality = ReplayQuality(
            **asdict(analysis.replay.quality),
            together=order.together,
            faults_together=order.faults_together,
            all_together=order.all_together,
        )
    return {"outcomes": outcomes.in_outcomes(facts.rank, ended), "replay": quality}


def _analysis(facts: Facts, rules: Sequence[LoadedRule]) -> Analysis:
    """The rules' findings with simulated savings; where the step cannot be replayed, why: then none is ranked."""
    examined = engine.examine(facts, rules)
    try:
        replay = baseline(facts)
    except Missing as missing:
        return Analysis(examined, missing)
    no_prices = Failed("what fixes would save, as diagnose itself failed", failures.REPORT)
    return attempt("all findings", Analysis(examined, no_prices), _priced, facts, examined, replay)


def _priced(facts: Facts, examined: Examined, replay: Replay) -> Analysis:
    """The analysis with the simulated saving of each finding, in the order of the report."""
    usable = [(rule, _by_measurements(facts, finding)) for rule, finding in _usable(facts, examined.findings)]
    findings, step = merging.one_of_each_choice(usable, replay), Step.of(facts, replay)
    order = ranking.ranked(findings, replay, steps(facts), facts.rank.index, examined.cautions, step)
    return Analysis(examined, replay, findings, order, step)


def _usable(facts: Facts, findings: Sequence[Found]) -> Sequence[Found]:
    """The findings without fixes that are in force, others in the words of this program's framework and libraries."""
    for name, refine in _PASSES.items():
        findings = attempt(name, findings, refine, facts, findings)
    return findings


def _followable(facts: Facts, findings: Sequence[Found]) -> list[Found]:
    """The findings with fixes that this run can follow, in its words; without those whose fixes are all in force."""
    rank = facts.rank
    here = fixes_of_run.Situation(rank.context, rank.provenance.devices, program(facts), older_than(facts))
    return fixes_of_run.fitted(here, findings)


_PASSES: Mapping[str, Callable[[Facts, Sequence[Found]], Sequence[Found]]] = {
    "fixes as this run can follow them": _followable,
    "settings of frameworks": fixes_of_run.with_framework,
    "functions of libraries in findings": fixes_of_run.with_library,
    "what findings ask to record": lambda facts, found: outcomes.in_findings(facts.rank, found),
    "findings with one fix": lambda facts, found: merging.merged(found),
}
"""From what rules find to what this run can use, in order; where one fails, findings stay as they were."""


def _by_measurements(facts: Facts, finding: Finding) -> Finding:
    """The finding, with a basis that says so where its whole saving comes from benchmarks, here or elsewhere."""
    recosts = [edit for edit in finding.edits if isinstance(edit, Recost)]
    if not recosts or len(recosts) < len(finding.edits):
        return finding
    if rest_on_measurements(facts, recosts):
        return replace(finding, basis=Basis.MEASURED)
    elsewhere = finding.basis is Basis.RULE_OF_THUMB and not trains_on_cpu(facts)
    return replace(finding, basis=Basis.TIMED_ELSEWHERE) if elsewhere else finding


WORTH_MEASURING = 0.01  # Of the step: ops that take less of it are not measured (our choice).


def to_measure(files: RankFiles) -> tuple[Facts, list[Wanted]]:
    """A rank's facts, and its ops that fixes change. Raises InputError, and Missing where no step can be measured."""
    facts = Facts(recording.read(files))
    findings = _usable(facts, engine.examine(facts, engine.load(RuleSet())).findings)
    recosts = [[edit for edit in finding.edits if isinstance(edit, Recost)] for _, finding in findings]
    return facts, wanted(facts, list(filter(None, recosts)), WORTH_MEASURING * steps(facts).mean_ns)
