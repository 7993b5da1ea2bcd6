"""Laws of arithmetic that hold for every report: of all samples and, with --corpus, of all that was recorded."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import diagnose
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.reports import findings, terminal
from diagnose.rulekit import page
from diagnose.source.base import InputError
from diagnose.trace.units import duration

pytestmark = pytest.mark.slow

ROOMS = {path.stem: path.parent.name for path in page.files(page.built_in_rules())}
OF_HOST = {"data_loading", "copies", "launch", "synchronisation", "pauses", "ranks", "communication"}
"""Families of rules whose fixes make no kernel faster."""
SAMPLES = sorted(path.parent for path in Path("sample_traces").rglob("manifest.json"))
TURNS = 8  # In which the corpus is read, side by side.
MOST_BYTES = 60_000_000  # Of a trace: larger ones take long.


def ranges(found: Diagnosis) -> Iterator[str]:
    for one in found.findings:
        alone = one.saving.low_ns, one.saving.likely_ns, one.saving.high_ns
        for low, likely, high in (alone, one.shown_ns):
            most = high if one.per_sample else found.step_ns or 0
            if not 0 <= low <= likely <= high <= most:
                yield f"{one.code}: {low} to {high}, likely {likely}, of {found.step_ns}"
    quality = found.replay
    for all_of in (quality.together, quality.all_together) if quality else ():
        if all_of is not None and not 0 <= all_of.low_ns <= all_of.likely_ns <= all_of.high_ns <= (found.step_ns or 0):
            yield f"together: {all_of} of {found.step_ns}"


def sums(found: Diagnosis, fixing: Sequence[RankedFinding]) -> Iterator[str]:
    """What is said of all fixes, in JSON and in the heading, is what the listed ones add up to."""
    added, left_ns = sum(one.shown_ns[1] for one in fixing), findings.left_ns(found)
    every = found.replay.all_together if found.replay else None
    if (every.likely_ns if every else 0) != added or left_ns != (found.step_ns or 0) - added:
        yield f"{added} one after the other, together {every}, {left_ns} left"
    if fixing and duration(left_ns) not in " ".join(terminal.render(found).split()):
        yield f"the heading does not say that {duration(left_ns)} are left"


def parts(found: Diagnosis, fixing: Sequence[RankedFinding]) -> Iterator[str]:
    """The parts of a step add up to the one in the heading, and what the GPU computes is left by fixes of the host."""
    if (whole := found.breakdown) is None:
        return
    busy_ns = whole.compute_ns + whole.exposed_communication_ns + whole.exposed_copy_ns
    timed = found.steps and found.steps.unprofiled_step_time_ns
    idle_ns = whole.idle_ns if found.idle is None else sum(one.ns for one in found.idle)
    if busy_ns + whole.idle_ns + whole.work_not_recorded_ns != whole.step_ns or timed not in (None, whole.step_ns):
        yield f"{whole} of {timed}"
    if abs(idle_ns - whole.idle_ns) > len(found.idle or ()):
        yield f"causes of idle: {idle_ns} of {whole.idle_ns}"
    on_host = all(ROOMS.get(rule) in OF_HOST for one in fixing for rule in one.rules)
    if fixing and on_host and findings.left_ns(found) < 0.97 * whole.compute_ns:
        yield f"{findings.left_ns(found)} left, of which the GPU computes {whole.compute_ns}"


def broken(found: Diagnosis) -> list[str]:
    """Which laws a report breaks, with numbers."""
    fixing = [one for one in found.findings if one.shortens]
    return [*ranges(found), *sums(found, fixing), *parts(found, fixing)]


def recordings(corpus: Path) -> Iterator[Path]:
    """Folders with a manifest, and traces that are in none."""
    for path in sorted(corpus.rglob("*.json*")):
        if path.name == "manifest.json":
            yield path.parent
        elif not (path.parent / "manifest.json").exists() and path.stat().st_size < MOST_BYTES:
            yield path


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_every_sample_obeys_them(sample: Path) -> None:
    assert broken(diagnose.analyze(sample)) == []


@pytest.mark.parametrize("turn", range(TURNS))
def test_every_recording_obeys_them(corpus: Path, turn: int) -> None:
    some = list(recordings(corpus))[turn::TURNS]
    said = {path: diagnosed for path in some if (diagnosed := read(path)) is not None}
    assert said
    assert {path: laws for path, found in said.items() if (laws := broken(found))} == {}


def read(path: Path) -> Diagnosis | None:
    """None of a file that is no recording."""
    try:
        return diagnose.analyze(path)
    except InputError:
        return None
