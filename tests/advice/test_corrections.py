"""Findings whose rules trials have shown to be biased: their prices, their order, and what all save together."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import pytest

from diagnose.advice import ranking
from diagnose.advice.ranking import Ranked
from diagnose.contracts.finding import SavingRange
from diagnose.contracts.track_record import TrackRecord
from diagnose.contracts.trials import Range
from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.replay.edits import Edit
from diagnose.replay.saving import Basis, Replay
from diagnose.synthetic.reading import facts_of
from tests.advice.test_ranking import HOST_BOUND, finding, in_ms, page, shorter


def record(factor: float | None) -> TrackRecord:
    found = None if factor is None else Range(factor, factor, factor)
    return TrackRecord(7, 7, 6, 1, factor, found, found)


def gaining(ms: int, of_ms: int) -> TrackRecord:
    """Of steps of 100 ms: so much is gained where more was predicted."""
    return record(math.log(1 - ms / 100) / math.log(1 - of_ms / 100))


def ordered(records: dict[str, TrackRecord], facts: Facts | None = None, per_sample: str = "") -> Ranked:
    """Of three parts in line, a of 30 ms, b of 20 and c of 10."""
    facts = facts or facts_of(HOST_BOUND)
    found = [
        (page(name), replace(finding(shorter(facts, name)), per_sample=name == per_sample)) for name in ("a", "b", "c")
    ]
    return ranking.ranked(found, Replay(facts), steps(facts), 0, records=records)


def test_the_order_is_by_what_is_left_after_correction() -> None:
    found = ordered({"a": gaining(5, 30)}).findings
    assert [in_ms(one) for one in found] == [("b", 20, 20), ("c", 10, 10), ("a", 5, 5)]
    assert [one.saving_uncorrected for one in found] == [None, None, SavingRange(30_000_000, 30_000_000, 30_000_000)]
    assert found[2].predicted == found[2].saving_uncorrected
    assert found[2].share_of_step == 0.05
    assert found[2].track_record == gaining(5, 30)


def test_more_than_was_predicted() -> None:
    found = ordered({"c": gaining(40, 10)}).findings
    assert [in_ms(one) for one in found] == [("c", 40, 40), ("a", 30, 30), ("b", 20, 20)]


def test_what_all_save_together_is_corrected_by_what_each_adds() -> None:
    """Of 100 ms 60 are saved by the replay; half of them, of a, are corrected."""
    found, factor = ordered({"a": gaining(5, 30)}), math.log(0.95) / math.log(0.7)
    assert found.together is not None
    assert found.together.likely_ns == 100_000_000 - round(1e8 * 0.4 ** ((30 + 30 * factor) / 60))


def test_a_rule_without_a_bias_is_as_ever_and_shows_its_record() -> None:
    plain, known = ordered({}), ordered({"a": record(None)})
    assert known.findings[0].track_record == record(None)
    assert [msgspec.structs.replace(finding, track_record=None) for finding in known.findings] == list(plain.findings)
    assert known.together == plain.together


def test_what_never_gained_here_is_minor_and_not_lost() -> None:
    found = ordered({"a": record(0.0)})
    assert [in_ms(finding) for finding in found.findings] == [("b", 20, 20), ("c", 10, 10), ("a", 0, None)]
    assert [finding.minor for finding in found.findings] == [False, False, True]
    assert found.costless == ()


def test_a_gain_per_sample_is_not_corrected() -> None:
    """Trials measure steps."""
    (found,) = [finding for finding in ordered({"a": record(0.5)}, per_sample="a").findings if finding.rule == "a"]
    assert (in_ms(found)[1], found.saving_uncorrected) == (30, None)


def test_what_is_only_a_bound_is_not_corrected(monkeypatch: pytest.MonkeyPatch) -> None:
    really = Replay.savings

    def bounded(self: Replay, fixes: list[list[Edit]], after: tuple[Edit, ...] = ()) -> list[object]:
        return [replace(one, low_ns=0, basis=Basis.BOUNDED) for one in really(self, fixes, after)]

    monkeypatch.setattr(Replay, "savings", bounded)
    found = ordered({"a": record(0.5)}).findings[0]
    assert (in_ms(found)[1], found.saving_uncorrected) == (30, None)


@pytest.mark.parametrize(("busy", "others_ms"), [(1.0, 6.3)])
def test_what_other_ops_gain_is_corrected_with_the_rest(busy: float, others_ms: float) -> None:
    """Of 36.3 ms 6.3 are other ops'; half the gain is 20.2 ms."""
    facts = facts_of(HOST_BOUND)
    found = [(page("a"), finding(shorter(facts, "a")))]
    (one,) = ranking.ranked(found, Replay(facts), steps(facts), 0, busy=busy, records={"a": record(0.5)}).findings
    half_ms = 100 * (1 - math.sqrt(1 - 0.363))
    assert in_ms(one)[1] == pytest.approx(half_ms)
    assert one.saving.others_ns / 1e6 == pytest.approx(others_ms * half_ms / 36.3)
