"""The order of the stages: paths -> files -> a digest of each rank -> the Diagnosis."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from pathlib import Path

from diagnose import __version__, diagnosis
from diagnose.diagnosis import Diagnosis
from diagnose.facts.base import Facts, Missing
from diagnose.facts.digest import RankDigest, digest
from diagnose.facts.steps import steps
from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.source.ranks import TraceFile

POOL_BYTES = 4 << 20
"""Files that are smaller together are read faster than worker processes start."""

StepRange = tuple[int, int]
Progress = Callable[[int, int], None]


def diagnose(
    paths: Sequence[str | Path],
    step_range: StepRange | None = None,
    jobs: int | None = None,
    progress: Progress = lambda done, total: None,
) -> Diagnosis:
    """Diagnose the run in `paths` with up to `jobs` processes (default 1); `progress` gets (done, total) files.

    Raises InputError if a named file, or all files of a folder, cannot be read.
    """
    files = ranks.find(paths)
    digests, notes = [], []
    for done, result in enumerate(_digests(files, step_range, jobs or 1), start=1):
        if isinstance(result, RankDigest):
            digests.append(result)
        elif files[done - 1].named:
            raise result
        else:
            notes.append(ranks.unreadable(result))
        progress(done, len(files))
    if not digests:
        raise InputError(notes[0].what)
    arranged = ranks.arrange([one.provenance for one in digests])
    placed = zip(digests, arranged.indexes, strict=True)
    used = sorted((replace(one, index=index) for one, index in placed if index is not None), key=lambda one: one.index)
    return diagnosis.of_ranks(used, (*arranged.integrity, *notes), __version__)


def _digests(files: Sequence[TraceFile], step_range: StepRange | None, jobs: int) -> Iterator[RankDigest | InputError]:
    """The digest of each file in order, or why it cannot be had."""
    arguments = ([file.path for file in files], [step_range] * len(files))
    if jobs == 1 or len(files) == 1 or sum(map(_size, files)) < POOL_BYTES:
        yield from map(_digest, *arguments)
        return
    with ProcessPoolExecutor(min(jobs, len(files)), multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(_digest, *arguments)
        except BrokenProcessPool as error:
            raise InputError("A reading process was killed, perhaps for memory. Try a smaller --jobs.") from error
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _size(file: TraceFile) -> int:
    try:
        return file.path.stat().st_size
    except OSError:
        return 0


def _digest(path: Path, step_range: StepRange | None) -> RankDigest | InputError:
    try:
        facts = Facts(ranks.read(path), step_range)
    except InputError as error:
        return error
    if step_range is not None:
        try:
            steps(facts)
        except Missing as missing:
            return InputError(f"{path} has no {missing.what}. {missing.how_to_record_it}")
    return digest(facts)
