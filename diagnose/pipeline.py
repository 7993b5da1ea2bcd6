"""The story of an analysis, and the page to read first: paths -> ranks -> facts -> findings -> Diagnosis.

What happens on the way, and where something new goes:

    paths      `source/` finds which files are a rank's and reads them as tables: a trace format is a
               reader there, listed in `source/ranks.py`.
    facts      `facts/` measures a rank, each fact when it is first asked for: a measurement is a function there.
    findings   `rulekit/` asks each rule what it finds in the facts: a rule is a Python file in the
               folder of its family in `rules/`.
               `replay/` says what each fix would save; `findings/` drops fixes in force and ranks the rest.
    Diagnosis  the one value that `reports/` show: a figure of the report is a function in
               `reports/html/`, listed in its `page.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path

from diagnose import __version__
from diagnose.facts.communication.peers import awaited, compare
from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.run import busy_share
from diagnose.facts.core.steps import steps
from diagnose.facts.digest import digest
from diagnose.facts.run.program import program
from diagnose.facts.run.slowdown import slowdown
from diagnose.findings import (
    diagnosis,
    fixes_for_devices,
    fixes_for_programs,
    fixes_in_force,
    library_evidence,
    outcomes,
    own_calls,
    ranking,
    recording_hints,
    risks,
)
from diagnose.findings.diagnosis import Diagnosis, RankDiagnosis
from diagnose.findings.finding import ReplayQuality
from diagnose.findings.job import job_summary
from diagnose.replay.baseline import baseline
from diagnose.replay.critical_path import path_parts
from diagnose.reports import notebook
from diagnose.reports.timeline import spots
from diagnose.reports.timeline.drawing import timeline
from diagnose.reports.timeline.pictures import pictures
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule, RuleSet
from diagnose.source import processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.trace.model import IntegrityNote, Peers

StepRange = tuple[int, int]
Progress = Callable[[int, int], None]

_loaded = lru_cache(maxsize=1)(engine.load)
"""The rules: a process that diagnoses many files loads them once."""


def diagnose(
    paths: Sequence[str | Path] | Recordings,
    step_range: StepRange | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
    rules: RuleSet | None = None,
) -> Diagnosis:
    """Diagnose the run in `paths`, or what was found there, with up to `jobs` processes (default 1).

    `progress` gets (done, total) files.
    Raises InputError if a named file, or all files of a folder, cannot be read, and RuleError if the rules cannot.
    """
    notebook.register()
    given = paths if isinstance(paths, Recordings) else recording.find(paths)
    rules = rules or RuleSet()
    _loaded.cache_clear()  # Their files may have changed since the last diagnosis.
    pages = [engine.shown(one) for one in _loaded(rules)]
    study = partial(diagnose_files, step_range=step_range, rules=rules)
    with processes.executor(jobs or 1, given.ranks) as pool:
        read, unreadable = _readable(given.ranks, pool.map(study, given.ranks), progress)
    arranged = ranks.arrange([one.said.digest.provenance for one in read])
    placed = sorted((index, one) for index, one in zip(arranged.indexes, read, strict=True) if index is not None)
    said = {index: replace(one.said, digest=replace(one.said.digest, index=index)) for index, one in placed}
    said |= _compared(said, {index: one.files for index, one in placed}, study)
    notes = [*given.integrity, *arranged.integrity, *unreadable]
    return diagnosis.of_ranks(list(said.values()), notes, __version__, given.manifest, pages)


@dataclass(frozen=True)
class _Read:
    files: RankFiles
    said: RankDiagnosis


def _readable(
    files: Sequence[RankFiles], results: Iterable[RankDiagnosis | InputError], progress: Progress
) -> tuple[list[_Read], list[IntegrityNote]]:
    """What is known of each file, and notes on those of a folder that cannot be read. Raises InputError."""
    read, notes = list[_Read](), list[IntegrityNote]()
    for done, (one, result) in enumerate(zip(files, results, strict=True), start=1):
        if isinstance(result, RankDiagnosis):
            read.append(_Read(one, result))
        elif one.trace.named:
            raise result
        else:
            notes.append(ranks.unreadable(result))
        progress(done, len(files))
    if not read:
        raise InputError(notes[0].what)
    return read, notes


def _compared(
    said: Mapping[int, RankDiagnosis],
    files: Mapping[int, RankFiles],
    study: Callable[..., RankDiagnosis | InputError],
) -> dict[int, RankDiagnosis]:
    """The rank that the others wait for, once more with what they tell; none if they do not wait. Raises InputError."""
    others = compare({index: one.digest.course for index, one in said.items()})
    if not others:
        return {}
    index = awaited(others)
    index = diagnosis.slowest(list(said.values())).digest.index if index is None else index
    again = study(files[index], others=others[index])
    if isinstance(again, InputError):
        raise again
    return {index: again}


def diagnose_files(
    files: RankFiles, step_range: StepRange | None, rules: RuleSet, others: Peers | None = None
) -> RankDiagnosis | InputError:
    """What is known of one rank, or why it cannot be read; runs in a process of its own, so that nothing is raised."""
    try:
        rank = recording.read(files)
    except InputError as error:
        return error
    if others is not None:
        rank = replace(rank, index=others.rank, peers=others)
    facts = Facts(rank, step_range)
    if step_range is not None:
        try:
            steps(facts)
        except Missing as missing:
            return InputError(f"{files.trace.path} has no {missing.what}. {missing.how_to_record_it}")
    return diagnose_rank(facts, _loaded(rules))


def diagnose_rank(facts: Facts, rules: Sequence[LoadedRule]) -> RankDiagnosis:
    """What is known of a rank. Without a replay nothing has a price, so that nothing is found."""
    rank = facts.rank
    brief, cost = recording_hints.in_digest(digest(facts)), optional(slowdown, facts)
    drawn, sampled, job = optional(timeline, facts), optional(pictures, facts), optional(job_summary, facts)
    examined = engine.examine(facts, rules)
    brief = replace(brief, integrity=(*brief.integrity, *map(engine.note, examined.cautions)))
    ahead = risks.shown(examined.risks, rank.index)
    try:
        replay = baseline(facts)
    except Missing as missing:
        ended = outcomes.unpriced(examined.outcomes, examined.findings, missing)
        ended = recording_hints.in_outcomes(rank.provenance.format, ended)
        return RankDiagnosis(
            brief,
            outcomes=ended,
            slowdown=cost,
            timeline=drawn,
            pictures=sampled,
            job=job,
            peers=rank.peers,
            risks=ahead,
        )
    found = fixes_in_force.dropped(rank.context, examined.findings)
    found = fixes_for_programs.fitting(program(facts), found)
    found = library_evidence.added(facts, own_calls.at_their_place(rank.context, found))
    unprofiled_ns = None if cost is None else cost.unprofiled_ns
    order = ranking.ranked(found, replay, steps(facts), rank.index, examined.cautions, unprofiled_ns, busy_share(facts))
    ended = outcomes.priced(examined.outcomes, examined.findings, found, order)
    placed = spots.on_timeline(facts, order)
    return RankDiagnosis(
        brief,
        findings=fixes_for_devices.followable(rank.provenance.devices, placed),
        outcomes=recording_hints.in_outcomes(rank.provenance.format, ended),
        replay=ReplayQuality(**vars(replay.quality), together=order.together),
        slowdown=cost,
        timeline=drawn,
        pictures=sampled,
        critical_path=path_parts(facts),
        job=job,
        peers=rank.peers,
        risks=ahead,
    )
