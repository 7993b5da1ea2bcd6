"""Laws of arithmetic that hold for every report: of all samples and, with --corpus, of all that was recorded."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

import diagnose
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Kind, RankedFinding
from diagnose.reports import brief, heading, terminal
from diagnose.reports.brief import Brief
from diagnose.rulekit import page
from diagnose.source.base import InputError
from diagnose.trace.units import duration, durations_ns
from tests.exhaustive import some_of

pytestmark = pytest.mark.slow

ROOMS = {path.stem: path.parent.name for path in page.files(page.built_in_rules())}
OF_HOST = {"data_loading", "copies", "launch", "synchronisation", "pauses", "ranks", "communication"}
"""Families of rules whose fixes make no kernel faster."""
SAMPLES = sorted(path.parent for path in Path("sample_traces").rglob("manifest.json"))
MOST_WORDS = 25  # In a sentence.
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
    for all_of in (quality.together, quality.faults_together, quality.all_together) if quality else ():
        if all_of is not None and not 0 <= all_of.low_ns <= all_of.likely_ns <= all_of.high_ns <= (found.step_ns or 0):
            yield f"together: {all_of} of {found.step_ns}"


def sums(found: Diagnosis, fixing: Sequence[RankedFinding]) -> Iterator[str]:
    """What is said of all faults, and of all fixes, in JSON and in the heading, is what the listed ones add up to."""
    faults = [one for one in fixing if one.kind is Kind.FAULT]
    quality, said = found.replay, " ".join(heading.gain(found))
    every_one = [*fixing, *(one for one in found.findings if one.hidden and not one.per_sample)]
    for some, every in ((faults, quality and quality.faults_together), (every_one, quality and quality.all_together)):
        added = sum(one.shown_ns[1] for one in some)
        if (every.likely_ns if every else 0) != added:
            yield f"{added} one after the other, together {every}"
        if some and some[-1].kind in (Kind.FAULT, Kind.OPTION) and duration(left_ns(found, some)) not in said:
            yield f"the heading does not say that {left_ns(found, some)} are left: {said}"


def named(found: Diagnosis) -> Iterator[str]:
    """A finding says where the time is that it saves: no less than that in one of its sentences."""
    for one in found.findings:
        texts = " ".join(evidence.text for evidence in one.evidence)
        times = durations_ns(texts)
        saved_ns = one.saving.likely_ns - one.saving.others_ns
        if times and not one.minor and not one.per_sample and saved_ns > 1.06 * max(times):
            yield f"{one.code}: saves {saved_ns}, and says {texts}"


def left_ns(found: Diagnosis, fixing: Sequence[RankedFinding]) -> int:
    return (found.step_ns or 0) - sum(one.shown_ns[1] for one in fixing)


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
    if fixing and on_host and left_ns(found, fixing) < 0.97 * whole.compute_ns:
        yield f"{left_ns(found, fixing)} left, of which the GPU computes {whole.compute_ns}"


def broken(found: Diagnosis) -> list[str]:
    """Which laws a report breaks, with numbers."""
    fixing = [one for one in found.findings if one.shortens]
    return [*ranges(found), *sums(found, fixing), *parts(found, fixing), *named(found), *form(found)]


def form(found: Diagnosis) -> Iterator[str]:
    """A report is brief, fits the terminal, says nothing twice, and its sentences are short."""
    for width in (80, 100):
        lines = terminal.render(found, width).splitlines()
        if len(lines) > (terminal.MOST_LINES if found.job is None else terminal.MOST_JOB_LINES) and width == 100:
            yield f"{len(lines)} lines of {width} columns"
        yield from (f"wider than {width}: {line}" for line in lines if len(line) > width)
    said = sentences(brief.of(found))
    yield from (f"said {count} times: {one}" for one, count in Counter(said).items() if count > 1)
    yield from (f"{len(one.split())} words: {one}" for one in said if len(one.split()) > MOST_WORDS)


def sentences(found: Brief) -> list[str]:
    """Of the findings' evidence and of the notes, without lists and commands."""
    notes = [re.sub(r"^(All r|R)anks?[^:]*: ", "", note) for note in found.notes]
    texts = [*notes, *(one.evidence for _, _, some in found.lists for one in some)]
    every = [part for text in texts for part in re.split(r"(?<=[.:;])\s+", text)]
    return [part for part in every if len(part.split()) > 3]


def recordings(corpus: Path) -> Iterator[Path]:
    """Folders with a manifest, and traces that are in none."""
    for path in sorted(corpus.rglob("*.json*")):
        if path.name == "manifest.json":
            yield path.parent
        elif not (path.parent / "manifest.json").exists() and path.stat().st_size < MOST_BYTES:
            yield path


@pytest.mark.parametrize("sample", some_of(SAMPLES, [one for one in SAMPLES if not one.match("*_fixed")][::2]), ids=str)
def test_every_sample_obeys_them(sample: Path) -> None:
    assert broken(diagnose.analyze(sample)) == []


@pytest.mark.parametrize("turn", some_of(range(TURNS), range(3)))
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
