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

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from diagnose.facts.communication.kept import compared
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
    track_record,
)
from diagnose.findings.diagnosis import Diagnosis
from diagnose.findings.finding import ReplayQuality
from diagnose.findings.job import job_summary
from diagnose.findings.ledger import Entry, device_of
from diagnose.findings.rank_diagnosis import RankBrief, RankDiagnosis, in_brief, shared
from diagnose.findings.track_record import TrackRecord
from diagnose.replay.baseline import baseline
from diagnose.replay.critical_path import path_parts
from diagnose.reports import notebook
from diagnose.reports.timeline import spots
from diagnose.reports.timeline.drawing import timeline
from diagnose.reports.timeline.pictures import pictures
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule, RuleSet
from diagnose.rulekit.vocabulary import RuleError
from diagnose.source import processes, ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles, Recordings
from diagnose.trace.model import IntegrityNote, Peers
from diagnose.version import __version__

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
    cluster: str | None = None,
    trials: Sequence[Entry] = (),
) -> Diagnosis:
    """Diagnose the run in `paths`, or what was found there, with up to `jobs` processes (default 1).

    `progress` gets (done, total) files.
    `cluster`: the address of a Dask scheduler whose workers do it, or "local" for `jobs` of them here.
    `trials` correct savings: those of the device that the manifest names. Without any, only the files in `paths` count.
    Raises InputError if a named file, or all files of a folder, cannot be read, and RuleError if the rules cannot.
    """
    notebook.register()
    given = paths if isinstance(paths, Recordings) else recording.find(paths)
    rules = rules or RuleSet()
    _loaded.cache_clear()  # Their files may have changed since the last diagnosis.
    pages = [engine.shown(one) for one in _loaded(rules)]
    records = {} if given.manifest is None else track_record.by_rule(trials, device_of(given.manifest))
    study = partial(diagnose_files, step_range=step_range, rules=rules, records=records)
    if len(given.ranks) == 1:
        said, briefs, notes = _of_one(given.ranks[0], study, progress)
    else:
        brief = partial(brief_of_files, step_range=step_range, rules=rules, ranks=len(given.ranks), records=records)
        briefly = processes.results(brief, given.ranks, jobs or 1, cluster)
        said, briefs, notes = _of_many(given.ranks, briefly, study, progress)
    notes = [*given.integrity, *notes]
    return diagnosis.of_ranks(said, briefs, notes, __version__, given.manifest, pages, given.trials)


Study = Callable[..., RankDiagnosis | InputError]
Known = tuple[RankDiagnosis, list[RankBrief], list[IntegrityNote]]
"""The rank that is shown, all in brief, and what is wrong with their files."""


def _of_one(files: RankFiles, study: Study, progress: Progress) -> Known:
    """Raises InputError."""
    said = _sound(study(files))
    progress(1, 1)
    arranged = ranks.arrange([said.digest.provenance])
    said = replace(said, digest=replace(said.digest, index=arranged.indexes[0] or 0))
    return said, [in_brief(said, 1)], list(arranged.integrity)


def _of_many(
    files: Sequence[RankFiles],
    briefly: Iterable[tuple[int, RankBrief | InputError]],
    study: Study,
    progress: Progress,
) -> Known:
    """All ranks in brief; then the one that the others wait for in full, with what they tell. Raises InputError."""
    read, notes = _readable(files, briefly, progress)
    while True:
        arranged = ranks.arrange([one.provenance for one in read.values()])
        placed = {index: at for index, at in zip(arranged.indexes, read, strict=True) if index is not None}
        briefs = {index: replace(read[placed[index]], index=index) for index in sorted(placed)}
        others, left_out = compared({index: one.course for index, one in briefs.items()})
        shown = None if others is None else others.awaited
        shown = diagnosis.slowest(list(briefs.values())).index if shown is None else shown
        peers = None if others is None or shown not in others.job.ranks else others.peers(shown)
        again = files[placed[shown]]
        said = study(again, index=shown, others=peers)
        if not isinstance(said, InputError):
            briefs[shown] = in_brief(said, len(files))
            return said, list(briefs.values()), [*arranged.integrity, *left_out, *notes]
        del read[placed[shown]]  # It was readable a moment ago.
        if again.trace.named or not read:
            raise said
        notes.append(ranks.unreadable(said))


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
    """The brief with paths as the user named them, wherever they were read."""
    detail = brief.provenance.detail and str(files.detail)
    return replace(brief, provenance=replace(brief.provenance, path=str(files.trace.path), detail=detail))


def brief_of_files(
    files: RankFiles, step_range: StepRange | None, rules: RuleSet, ranks: int, records: Mapping[str, TrackRecord]
) -> RankBrief | InputError:
    """What is known of one of so many ranks in brief; runs in a process of its own, so that little is raised."""
    try:
        said = diagnose_files(files, step_range, rules, records=records)
    except RuleError:
        raise
    except Exception as error:
        if os.environ.get("DIAGNOSE_DEBUG"):
            raise
        alone = f"DIAGNOSE_DEBUG=1 diagnose analyze {files.trace.path}"
        return InputError(
            f"diagnose itself failed on {files.trace.path} ({type(error).__name__}). Please report {alone}"
        )
    return said if isinstance(said, InputError) else in_brief(said, ranks)


def diagnose_files(
    files: RankFiles,
    step_range: StepRange | None,
    rules: RuleSet,
    index: int | None = None,
    others: Peers | None = None,
    records: Mapping[str, TrackRecord] | None = None,
) -> RankDiagnosis | InputError:
    """What is known of one rank, or why it cannot be read. `index`: its number, where that is known by now."""
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
    return diagnose_rank(facts, _loaded(rules), records)


def diagnose_rank(
    facts: Facts, rules: Sequence[LoadedRule], records: Mapping[str, TrackRecord] | None = None
) -> RankDiagnosis:
    """What is known of a rank. Without a replay nothing has a price, so that nothing is found.

    `records`: how predictions have compared with trials on its device, by rule.
    """
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
    unprofiled_ns, busy = None if cost is None else cost.unprofiled_ns, busy_share(facts)
    order = ranking.ranked(found, replay, steps(facts), rank.index, examined.cautions, unprofiled_ns, busy, records)
    ended = outcomes.priced(examined.outcomes, examined.findings, found, order)
    placed = spots.on_timeline(facts, order)
    return RankDiagnosis(
        brief,
        findings=fixes_for_devices.followable(rank.provenance.devices, placed),
        outcomes=recording_hints.in_outcomes(rank.provenance.format, ended),
        replay=ReplayQuality(**vars(replay.quality), together=order.together, all_together=order.all_together),
        slowdown=cost,
        timeline=drawn,
        pictures=sampled,
        critical_path=path_parts(facts),
        job=job,
        peers=rank.peers,
        risks=ahead,
    )
