"""The order of the stages: paths -> files -> each rank's facts, findings and their order -> the Diagnosis."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from diagnose import __version__, one_rank
from diagnose.facts.communication import attendance
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.steps import steps
from diagnose.findings import diagnosis
from diagnose.findings.diagnosis import Diagnosis, RankDiagnosis
from diagnose.reports import notebook
from diagnose.rulekit import engine
from diagnose.rulekit.engine import RuleSet
from diagnose.source import ranks, recording
from diagnose.source.base import InputError
from diagnose.source.recording import RankFiles
from diagnose.trace.model import Company

_loaded = lru_cache(maxsize=1)(engine.load)
"""The rules: a process that diagnoses many files loads them once."""

POOL_BYTES = 4 << 20
"""Files that are smaller together are read faster than worker processes start."""

StepRange = tuple[int, int]
Progress = Callable[[int, int], None]


def diagnose(
    paths: Sequence[str | Path],
    step_range: StepRange | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
    rules: RuleSet | None = None,
) -> Diagnosis:
    """Diagnose the run in `paths` with up to `jobs` processes (default 1); `progress` gets (done, total) files.

    Raises InputError if a named file, or all files of a folder, cannot be read, and RuleError if the rules cannot.
    """
    given, rules = recording.find(paths), rules or RuleSet()
    files = given.ranks
    _loaded.cache_clear()  # Their files may have changed since the last diagnosis.
    pages = [engine.shown(one) for one in _loaded(rules)]
    found, notes, read = [], [], []
    for done, result in enumerate(_ranks(files, step_range, rules, jobs or 1), start=1):
        if isinstance(result, RankDiagnosis):
            found.append(result)
            read.append(files[done - 1])
        elif files[done - 1].trace.named:
            raise result
        else:
            notes.append(ranks.unreadable(result))
        progress(done, len(files))
    notebook.register()
    if not found:
        raise InputError(notes[0].what)
    arranged = ranks.arrange([one.digest.provenance for one in found])
    placed = sorted((index, at) for at, index in enumerate(arranged.indexes) if index is not None)
    used = {index: replace(found[at], digest=replace(found[at].digest, index=index)) for index, at in placed}
    if others := attendance.compare({index: one.digest.attendance for index, one in used.items()}):
        index = attendance.awaited(others)
        index = diagnosis.slowest(list(used.values())).digest.index if index is None else index
        again = _rank(read[dict(placed)[index]], step_range, rules, others[index])
        if isinstance(again, InputError):
            raise again
        used[index] = again
    notes = [*given.integrity, *arranged.integrity, *notes]
    return diagnosis.of_ranks(list(used.values()), notes, __version__, given.manifest, pages)


def _ranks(
    files: Sequence[RankFiles], step_range: StepRange | None, rules: RuleSet, jobs: int
) -> Iterator[RankDiagnosis | InputError]:
    """What is known of each file in order, or why it cannot be had."""
    count = len(files)
    arguments = (files, [step_range] * count, [rules] * count)
    if jobs == 1 or count == 1 or sum(map(_size, files)) < POOL_BYTES:
        yield from map(_rank, *arguments)
        return
    with ProcessPoolExecutor(min(jobs, count), multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(_rank, *arguments)
        except BrokenProcessPool as error:
            raise InputError("A reading process was killed, perhaps for memory. Try a smaller --jobs.") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _size(files: RankFiles) -> int:
    try:
        return sum(path.stat().st_size for path in (files.trace.path, files.detail) if path is not None)
    except OSError:
        return 0


def _rank(
    files: RankFiles, step_range: StepRange | None, rules: RuleSet, others: Company | None = None
) -> RankDiagnosis | InputError:
    try:
        rank = recording.read(files)
    except InputError as error:
        return error
    if others is not None:
        rank = replace(rank, index=others.rank, company=others)
    facts = Facts(rank, step_range)
    if step_range is not None:
        try:
            steps(facts)
        except Missing as missing:
            return InputError(f"{files.trace.path} has no {missing.what}. {missing.how_to_record_it}")
    return one_rank.diagnose(facts, _loaded(rules))
