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

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace

from diagnose import failures
from diagnose.advice import assembly, fixes_of_run, library_evidence, merging, outcomes, ranking
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
from diagnose.contracts.finding import Finding, Outcome, ReplayQuality, RuleName
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
from diagnose.rulekit.testing import Said
from diagnose.rulekit.vocabulary import RuleError
from diagnose.source import processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.synthetic.reading import facts_of
from diagnose.synthetic.run_notation import run_of
from diagnose.timeline import drawing
from diagnose.timeline.drawing import timeline
from diagnose.timeline.pictures import pictures
from diagnose.trace.manifest import Flags
from diagnose.trace.measured import Measurements
from diagnose.trace.model import Ground, IntegrityNote, Peers, Severity
from diagnose.version import __version__
from diagnose.watched.findings import of_run

StepRange = tuple[int, int]
Found = tuple[RuleName, Finding]
Progress = Callable[[int, int], None]

WORTH_MEASURING = 0.01  # Of the step: ops that take less of it are not measured (our choice).


def diagnose(
    paths: Sequence[str | Path] | Recordings,
    step_range: StepRange | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
    rules: RuleSet | None = None,
    cluster: str | None = None,
) -> Diagnosis:
    """Diagnose the run in `paths`, or what was found there, with up to `jobs` processes (default 1).

    `progress` gets (done, total) files.
    `cluster`: the address of a Dask scheduler whose workers do it, or "local" for `jobs` of them here.
    Raises InputError if a named file, or all files of a folder, cannot be read, and RuleError if the rules cannot.
    """
    given = paths if isinstance(paths, Recordings) else recording.find(paths)
    rules = rules or RuleSet()
    loaded = engine.load(rules)
    with failures.collected() as lost:
        pages = [engine.shown(one) for one in loaded]
        in_full = partial(of_files, present, step_range=step_range, rules=rules)
        if len(given.ranks) == 1:
            said, briefs, notes = _of_one(given.ranks[0], in_full, progress)
        else:
            brief = partial(brief_of_files, step_range=step_range, rules=rules, ranks=len(given.ranks))
            briefly = partial(processes.results, brief, jobs=jobs or 1, cluster=cluster)
            said, briefs, notes = _of_many(given.ranks, briefly, in_full, progress)
        notes = [*given.integrity, *notes]
        whole = assembly.of_ranks(said, briefs, notes, __version__, given.manifest, pages, given.trials)
    return msgspec.structs.replace(whole, integrity=(*whole.integrity, *map(note_of, lost)))


InFull = Callable[..., RankDiagnosis | InputError]
Known = tuple[RankDiagnosis, list[RankBrief], list[IntegrityNote]]
"""The rank that is shown, all in brief, and what is wrong with their files."""


def _of_one(files: RankFiles, in_full: InFull, progress: Progress) -> Known:
    """Raises InputError."""
    said = _sound(in_full(files))
    progress(1, 1)
    arranged = ranks.arrange([said.provenance], [()])
    said = _with(said, rank=arranged.indexes[0] or 0)
    return said, [in_brief(said, 1)], list(arranged.integrity)


def _of_many(
    files: Sequence[RankFiles],
    briefly: Callable[[Sequence[RankFiles]], Iterable[tuple[int, RankBrief | InputError]]],
    in_full: InFull,
    progress: Progress,
) -> Known:
    """All ranks in brief; then the one that the others wait for in full, with what they tell. Raises InputError."""
    read, notes = _readable(files, briefly(files), progress)
    if len({one.provenance.timed_by is None for one in read.values()}) > 1:  # Times of different steps: none compare.
        files = [one.without("device") for one in files]
        read, notes = _readable(files, briefly(files), progress)
        notes.append(WITH_OPS)
    while True:
        times = [() if one.steps is None else one.steps.times_ns for one in read.values()]
        arranged = ranks.arrange([one.provenance for one in read.values()], times)
        placed = {index: at for index, at in zip(arranged.indexes, read, strict=True) if index is not None}
        briefs = {index: replace(read[placed[index]], index=index) for index in sorted(placed)}
        sequences = {index: one.sequence for index, one in briefs.items()}
        others, left_out = attempt("the comparison of ranks", (None, []), compared, sequences)
        shown = None if others is None else others.awaited
        shown = assembly.slowest(list(briefs.values())).index if shown is None else shown
        peers = None if others is None or shown not in others.job.ranks else others.peers(shown)
        again = files[placed[shown]]
        said = in_full(again, index=shown, others=peers)
        if not isinstance(said, InputError):
            briefs[shown] = in_brief(said, len(files))
            return said, list(briefs.values()), [*arranged.integrity, *left_out, *notes]
        del read[placed[shown]]  # It was readable a moment ago.
        if again.trace.named or not read:
            raise said
        notes.append(ranks.unreadable(said))


WITH_OPS = IntegrityNote(
    "Ranks are compared in steps in which ops were recorded, which takes the host time.",
    "Of some ranks the steps without ops show other work.",
    Severity.WARNING,
    (Ground.HOST_TIMES,),
)


def _sound(said: RankDiagnosis | InputError) -> RankDiagnosis:
    """Raises InputError."""
    if isinstance(said, InputError):
        raise said
    return said


def _readable(
    files: Sequence[RankFiles], results: Iterable[tuple[int, RankBrief | InputError]], progress: Progress
) -> tuple[dict[int, RankBrief], list[IntegrityNote]]:
    """What is known of each file by position, and notes on those of a folder that cannot be read. Raises InputError."""
    read, lost, known = dict[int, RankBrief](), dict[int, InputError](), dict[object, Any]()
    for done, (at, result) in enumerate(results, start=1):
        if isinstance(result, RankBrief):
            read[at] = shared(_as_given(result, files[at]), known)
        elif files[at].trace.named:
            raise result
        else:
            lost[at] = result
        progress(done, len(files))
    notes = [ranks.unreadable(lost[at]) for at in sorted(lost)]
    if not read:
        raise InputError(notes[0].what)
    return {at: read[at] for at in sorted(read)}, notes


def _as_given(brief: RankBrief, files: RankFiles) -> RankBrief:
    detail = brief.provenance.detail and str(files.beside["detail"])
    return replace(brief, provenance=replace(brief.provenance, path=str(files.trace.path), detail=detail))


def brief_of_files(
    files: RankFiles, step_range: StepRange | None, rules: RuleSet, ranks: int
) -> RankBrief | InputError:
    """What is known of one of so many ranks in brief; runs in a process of its own, so that little is raised."""
    try:
        said = of_files(study, files, step_range, rules)
    except RuleError:
        raise
    except Exception as error:
        if failures.raised():
            raise
        alone = f"{failures.DEBUG}=1 diagnose analyze {files.trace.path}"
        return InputError(
            f"diagnose itself failed on {files.trace.path} ({type(error).__name__}). Please report {alone}"
        )
    return said if isinstance(said, InputError) else in_brief(said, ranks)


def of_files(
    look: Look,
    files: RankFiles,
    step_range: StepRange | None,
    rules: RuleSet,
    index: int | None = None,
    others: Peers | None = None,
) -> RankDiagnosis | InputError:
    """What `look` tells of one rank, or why it cannot be read. `index`: its number, where that is known by now."""
    try:
        rank = recording.read(files)
    except InputError as error:
        return error
    if index is not None:
        rank = replace(rank, index=index, peers=others)
    facts = Facts(rank, step_range)
    if step_range is not None:
        try:
            steps(facts)
        except Missing as missing:
            return InputError(f"{files.trace.path} has no {missing.what}. {missing.how_to_record_it}")
    with failures.collected() as lost:
        said = look(facts, engine.load(rules))
    return _with(said, integrity=(*said.sections.integrity, *map(note_of, lost)))


class ToMeasure(Struct, frozen=True):
    """What to measure of a rank's ops, and how they ran."""

    wanted: tuple[Wanted, ...]
    device: str  # Name of the GPU; "" where the CPU trains.
    cpu: str  # Name of the processor; "" if it was not recorded.
    flags: Flags  # What was set; nothing where that was not recorded.
    before: Measurements | None  # What was measured already.


def to_measure(files: RankFiles, rules: RuleSet | None = None) -> ToMeasure:
    """The ops that fixes of a rank change. Raises InputError, and Missing where nothing can be said of it."""
    facts = Facts(recording.read(files))
    examined = engine.examine(facts, engine.load(rules or RuleSet()))
    recosts = [
        [one for one in finding.edits if isinstance(one, Recost)] for _, finding in _refined(facts, examined.findings)
    ]
    found = wanted(facts, [some for some in recosts if some], WORTH_MEASURING * steps(facts).mean_ns)
    context = facts.rank.context
    devices = facts.rank.provenance.devices
    return ToMeasure(
        wanted=tuple(found),
        device="" if trains_on_cpu(facts) or not devices else devices[0].name,
        cpu=(context.host.cpu if context else None) or "",
        flags=context.rank.flags if context else Flags(),
        before=facts.rank.measured,
    )


def study(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """What has to be known of every rank of a job: its steps, its collectives, what the rules find on it."""
    return _told(facts, outline(facts), _found(facts, rules))


def present(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """All that a Diagnosis says of the rank that it shows. Without a replay nothing has a price: nothing is found."""
    found, said = _found(facts, rules), outline(facts)
    said = _with(said, **measured_sections(facts))
    if (step := found.step or optional(Step.of, facts)) is not None:
        said = replace(said, sections=step.figures(said.sections))
    said = _told(facts, said, found)
    return _with(
        said,
        steps=assembly.steps_of(said, optional(slowdown, facts), optional(epoch, facts)),
        findings=attempt("places on the timeline", found.order.findings, drawing.on_timeline, facts, found.order),
        outcomes=_outcomes(facts, found),
        replay=found.quality,
        timeline=optional(timeline, facts),
        pictures=optional(pictures, facts),
        critical_path=optional(path_parts, facts),
        job=optional(job_summary, facts),
        measured=assembly.measured_ops(facts.rank.measured),
    )


def _with(said: RankDiagnosis, **sections: Any) -> RankDiagnosis:
    return replace(said, sections=msgspec.structs.replace(said.sections, **sections))


Look = Callable[[Facts, Sequence[LoadedRule]], RankDiagnosis]


class Studied(Struct, frozen=True):
    """What the rules say of a rank."""

    examined: Examined
    replay: Replay | Missing
    found: Sequence[Found] = ()  # Findings without fixes that are in force.
    order: ranking.Ranked = ranking.NOTHING
    step: Step | None = None  # The step that savings are of.

    @property
    def quality(self) -> ReplayQuality | None:
        """None: nothing could be replayed."""
        if isinstance(self.replay, Missing):
            return None
        order = self.order
        return ReplayQuality(
            **asdict(self.replay.quality),
            together=order.together,
            faults_together=order.faults_together,
            all_together=order.all_together,
        )


NO_PRICES = Failed("what fixes would save, as diagnose itself failed", failures.REPORT)


def _found(facts: Facts, rules: Sequence[LoadedRule]) -> Studied:
    examined = engine.examine(facts, rules)
    try:
        replay = baseline(facts)
    except Missing as missing:
        return Studied(examined, missing)
    return attempt("all findings", Studied(examined, NO_PRICES), _priced, facts, examined, replay)


def _priced(facts: Facts, examined: Examined, replay: Replay) -> Studied:
    found = merging.one_of_each_choice(_by_costs(facts, _refined(facts, examined.findings)), replay)
    step = Step.of(facts, replay)
    order = ranking.ranked(found, replay, steps(facts), facts.rank.index, examined.cautions, step)
    return Studied(examined, replay, found, order, step)


def _refined(facts: Facts, found: Sequence[Found]) -> Sequence[Found]:
    """The findings without fixes that are in force, in the words of this program."""
    for name, refine in _PASSES.items():
        found = attempt(name, found, refine, facts, found)
    return found


def _by_costs(facts: Facts, found: Sequence[Found]) -> list[Found]:
    """The findings, of which those say so whose price is all of changed ops, by measurements here or elsewhere."""
    told = list[Found]()
    for page, finding in found:
        recosts = [edit for edit in finding.edits if isinstance(edit, Recost)]
        if recosts and len(recosts) == len(finding.edits):
            if rest_on_measurements(facts, recosts):
                finding = replace(finding, basis=Basis.MEASURED)
            elif finding.basis is Basis.RULE_OF_THUMB and not trains_on_cpu(facts):
                finding = replace(finding, basis=Basis.TIMED_ELSEWHERE)
        told.append((page, finding))
    return told


def _followable(facts: Facts, found: Sequence[Found]) -> list[Found]:
    rank = facts.rank
    here = fixes_of_run.Situation(rank.context, rank.provenance.devices, program(facts), older_than(facts))
    return fixes_of_run.fitted(here, found)


_PASSES: Mapping[str, Callable[[Facts, Sequence[Found]], Sequence[Found]]] = {
    "fixes as this run can follow them": _followable,
    "settings of frameworks": library_evidence.with_framework,
    "functions of libraries in findings": library_evidence.added,
    "what findings ask to record": lambda facts, found: outcomes.in_findings(facts.rank, found),
    "findings with one fix": lambda facts, found: merging.merged(found),
}
"""From what rules find to what this run can use, in order; where one fails, findings stay as they were."""


def _told(facts: Facts, said: RankDiagnosis, found: Studied) -> RankDiagnosis:
    told = outcomes.in_sections(said.sections, facts)
    return _with(
        replace(said, sections=told),
        integrity=(*told.integrity, *map(engine.note, found.examined.cautions)),
        findings=found.order.findings,
        risks=shown_risks(found.examined.risks, facts.rank.index),
    )


def _outcomes(facts: Facts, found: Studied) -> tuple[Outcome, ...]:
    before, findings = found.examined.outcomes, found.examined.findings
    if isinstance(found.replay, Missing):
        ended = outcomes.unpriced(before, findings, found.replay)
    else:
        ended = outcomes.priced(before, findings, found.found, found.order)
    return outcomes.in_outcomes(facts.rank, ended)


def of_drawing(rule: LoadedRule, drawing: str) -> Said:
    """What a rule says of a trace or a run that is drawn in text. Raises DrawingError."""
    if rule.check.of_run:
        return of_run(run_of(drawing), rule)
    said = present(facts_of(drawing), [rule])
    times_ns, replay = said.findings[0].saving.replayed_ns if said.findings else None, said.sections.replay
    if times_ns is None or replay is None:
        return said.outcomes[0], None
    low_ms, high_ms = ((replay.step_time_ns - ns) / 1e6 for ns in (max(times_ns), min(times_ns)))
    return said.outcomes[0], (low_ms, high_ms)
