"""No finding is sure beside a note on what it rests on, and a note on something else changes nothing."""

from dataclasses import replace

import pytest

from diagnose.contracts.finding import Level, RankedFinding
from diagnose.facts.core.base import Facts
from diagnose.pipeline import study
from diagnose.replay.saving import Basis
from diagnose.rulekit import engine, testing
from diagnose.rulekit.engine import RuleSet
from diagnose.rulekit.examples import Fires
from diagnose.rulekit.testing import Example
from diagnose.synthetic.reading import facts_of
from diagnose.trace.model import Ground, IntegrityNote, Severity
from tests.rules import built_in

FIRING = [
    one for rule in engine.load(RuleSet()) for one in testing.examples_of(rule) if isinstance(one.expected, Fires)
]


def found(drawing: str, rule: str, *doubts: Ground, severity: Severity = Severity.WARNING) -> list[RankedFinding]:
    """What a rule finds beside a note that doubts this."""
    rank = facts_of(drawing).rank
    note = IntegrityNote("Something is damaged.", "", severity, doubts)
    return list(study(Facts(replace(rank, integrity=(*rank.integrity, note))), [built_in(rule)]).findings)


@pytest.mark.slow
@pytest.mark.parametrize("example", FIRING, ids=lambda one: one.name)
def test_nothing_is_sure_beside_a_note_on_all_that_it_rests_on(example: Example) -> None:
    drawing, rule = example.expected.drawing, example.rule.page.id
    said = found(drawing, rule, *Ground)
    assert all(one.confidence.level is not Level.HIGH for one in said)
    assert all("a note on this recording doubts" in one.confidence.why for one in said)


READS = """
    4 steps of 100
    cpu  aten::mm 40-41 | aten::item 42-100 | sync 43-99
    gpu  sgemm 40.01-98 @40 | d2h 98.5-98.51 @42.5 8B
"""


@pytest.mark.parametrize(
    ("doubted", "level"),
    [
        (Ground.DEVICE_IDLE, Level.MEDIUM),
        (Ground.CLOCKS, Level.MEDIUM),
        (Ground.HOST_TIMES, Level.MEDIUM),
        (Ground.RANKS, Level.HIGH),
        (Ground.LAUNCHES, Level.HIGH),
    ],
)
def test_a_wait_rests_on_when_the_device_is_idle(doubted: Ground, level: Level) -> None:
    (one,) = found(READS, "scalar_syncs", doubted)
    assert one.confidence.level is level


def test_a_note_of_lost_device_work_leaves_a_bound() -> None:
    (sound,) = found(READS, "scalar_syncs")
    (one,) = found(READS, "scalar_syncs", Ground.DEVICE_IDLE, severity=Severity.ERROR)
    assert (one.confidence.level, one.saving.basis, one.saving.low_ns) == (Level.LOW, Basis.BOUNDED, 0)
    assert one.saving.likely_ns == sound.saving.likely_ns
