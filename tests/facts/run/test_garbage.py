"""Garbage that Python collects: how often, and for what."""

import numpy as np
import pytest

from diagnose import pipeline
from diagnose.facts.host.python import python_pauses
from diagnose.facts.run.step_table import garbage_collections
from diagnose.replay.edits import Shorten
from diagnose.replay.saving import Replay
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site

STEPS = "8 steps of 10\n1 threads, 2 cores\n"
COMPUTED = "cpu  aten::mm 0-4 | aten::mm 9-10\n"
USUAL = " ".join(["10"] * 9)


@pytest.mark.parametrize(
    ("timed", "collected", "told"),
    [
        (f"{USUAL} 10", "gc 4-9 in 4", False),
        (f"{USUAL} 15", "gc 4-9 in 4", True),  # Of ten steps without the profiler one has it.
        (USUAL, "gc 4-9 in 4", True),  # Too few were timed.
        ("10 11 12 13 14 15 16 17 18 19", "gc 4-9 in 4", True),  # It would not stand out.
        (f"{USUAL} 10", "gc 4-9", True),  # In each step: the others are as long because of it.
    ],
)
def test_a_long_collection_that_no_other_step_has(timed: str, collected: str, told: bool) -> None:
    found = garbage_collections(facts_of(f"{STEPS}timed {timed}\n{COMPUTED}cpu  {collected}"))
    assert (found.automatic.total > 0) == told
    assert len(found.once_ids) == (not told)


def test_short_collections_stay() -> None:
    synthetic = f"{STEPS}timed {USUAL} 10\n{COMPUTED}cpu  gc 4-9 in 4 | gc 4-5 not in 4"
    found = garbage_collections(facts_of(synthetic))
    assert (found.automatic.longest_ns, len(found.once_ids)) == (1_000_000, 1)


WRITES = 'cpu  "train.py(30): write" 4-9 | gc 5-6.5\n'


@pytest.mark.parametrize(
    ("more", "collecting_ns"),
    [
        (WRITES, 1_500_000),
        (WRITES + 'cpu  "train.py(40): other" 11-20 | aten::mm 20-21', 0),  # Others take more of Python's time.
        (WRITES.replace("gc 5-6.5", "") + "cpu  gc 1-2.5", 0),  # It is elsewhere that Python collects.
    ],
)
def test_garbage_of_what_a_line_makes(more: str, collecting_ns: int) -> None:
    """5 ms of a step are of one line, 1.5 of them a collection."""
    steps = STEPS.replace("10", "30") if "other" in more else STEPS
    found = {
        python_pause.site.function: python_pause
        for python_pause in python_pauses(facts_of(f"{steps}{COMPUTED}{more}"))
        if python_pause.site
    }
    assert found["write"].collecting_ns == collecting_ns
    assert (len(found["write"].collections) > 0) == (collecting_ns > 0)


def test_savings_are_of_steps_without_a_collection_that_no_other_has() -> None:
    """Of seven steps that are used, of 10 ms, one has 5 ms of it. Of the 5 ms in ops half is saved either way."""
    facts = facts_of(f"{STEPS}timed {USUAL} 10\n{COMPUTED}cpu  gc 4-9 in 4")
    plain, found = Replay(facts), Replay(facts, [Shorten(garbage_collections(facts).once_ids, 0.0)])
    assert (plain.quality.step_time_ns, found.quality.step_time_ns) == (10_000_000, 9_285_714)
    half = [[Shorten(np.flatnonzero((facts.rank.spans["name"] == "aten::mm").to_numpy()), 0.5)]]
    assert [replay.savings(half)[0].likely_ns for replay in (plain, found)] == [2_500_000, 2_500_000]


@pytest.mark.parametrize(("timed", "step_ns"), [(f"{USUAL} 10", 9_285_714), (f"{USUAL} 15", 10_000_000)])
def test_a_diagnosis_of_steps_without_it(timed: str, step_ns: int) -> None:
    found = pipeline.present(facts_of(f"{STEPS}timed {timed}\n{COMPUTED}cpu  gc 4-9 in 4"), ())
    assert found.sections.replay.step_time_ns == step_ns


def test_what_a_line_asks_for_has_its_line() -> None:
    asked = 'cpu  "train.py(7): step" 0-10 | "<built-in function collect>" 4-9 | gc 4.1-8.9\n'
    found = garbage_collections(facts_of(f"{STEPS}{COMPUTED}{asked}"))
    assert (found.explicit.host_ns, found.explicit.site) == (5_000_000, Site("train.py", 7, "step"))
    assert garbage_collections(facts_of(f"{STEPS}{COMPUTED}cpu  gc 4-9")).automatic.site is None
