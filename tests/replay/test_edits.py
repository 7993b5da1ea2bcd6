"""What each edit does to one small synthetic trace, and what odd edits do not do."""

import numpy as np
import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.replay.edits import Between, Detach, Edit, Estimate, Remove, Replace, Shorten, Times, shares
from diagnose.replay.saving import Basis, Replay, Saving
from diagnose.trace.intervals import Intervals
from tests.drawing import Drawing
from tests.replay.programs import OF_NOTHING, ids, python, saving

NO_SAVING = Saving(0, 0, 0, Basis.REPLAYED)


def trained(steps: int = 4) -> Facts:
    """Steps of 1,000 us: an op of 400 with a launch at 300, a kernel of 200, and a sync that returns at 700."""
    draw = Drawing()
    for number in range(steps):
        at = 1_000 * number
        draw.step(number, at, at + 1_000).op("aten::mm", at, at + 400)
        draw.launch("gemm", (at + 300, at + 310), (at + 490, at + 690))
        draw.call("cudaStreamSynchronize", at + 400, at + 700)
        draw.op("aten::add", at + 700, at + 1_000)
    return draw.facts()


def saved_us(*edits: Edit, facts: Facts | None = None) -> float:
    return saving(facts or trained(), *edits).likely_ns / 1_000


def test_what_an_edit_takes_off_a_step() -> None:
    facts = trained()
    gemm, op, sync = (ids(facts, name) for name in ("gemm", "aten::mm", "cudaStreamSynchronize"))
    assert saved_us(Shorten(gemm, 0.25)) == 150  # The host goes on earlier.
    assert saved_us(Shorten(gemm, 0.5), Shorten(gemm, 0.5)) == 150
    assert saved_us(Detach(gemm)) == saved_us(Detach(op)) == 0  # It says nothing of them.
    # The op's first 300 us delay the launch; the rest of it is hidden behind the kernel.
    assert saved_us(Shorten(op, 0.5)) == 150
    assert saved_us(Shorten(np.concatenate([op, ids(facts, "cudaLaunchKernel")]), 0.5)) == 150
    # Every sync waited: what one takes of its own is taken to be 10 us. Host: 400 + 10 + 300.
    assert saved_us(Detach(sync)) == 1_000 - 710


def test_times_of_a_thread_are_shortened_where_they_lie() -> None:
    facts = trained()
    assert saved_us(Shorten(python(facts), 0.5), facts=facts) == 100


def test_removed_with_its_op_a_kernel_takes_no_time_of_anybody() -> None:
    # What is left of a step: 10 us of the sync, which has nothing to wait for, and 300 of the other op.
    facts = trained()
    alone, with_kernel = ids(facts, "aten::mm"), np.concatenate([ids(facts, "aten::mm"), ids(facts, "gemm")])
    assert saved_us(Remove(alone), facts=facts) == saved_us(Remove(with_kernel), facts=facts) == 1_000 - 310


def test_a_replaced_group_takes_the_time_given_for_each_level() -> None:
    facts = trained()
    gemm = ids(facts, "gemm")
    durations = np.array([[190_000], [100_000], [50_000]]) * np.ones((1, len(gemm)), dtype=np.int64)
    found = saving(facts, Replace(gemm, np.arange(len(gemm)), durations))
    assert (found.low_ns, found.likely_ns, found.high_ns) == (10_000, 100_000, 150_000)


def test_levels_give_a_range() -> None:
    found = saving(trained(), Shorten(ids(trained(), "gemm"), Between(0.9, 0.5, 0.2)))
    assert (found.low_ns, found.likely_ns, found.high_ns) == (20_000, 100_000, 160_000)
    assert found.basis is Basis.REPLAYED
    edits = [Shorten(ids(trained(), "gemm"), Between(1.0, 0.5, 0.0))]
    times = Replay(trained()).step_times_ns([(edits, level) for level in Estimate])
    assert times.tolist() == [1_000_000, 900_000, 800_000]


def test_shares_are_bounded() -> None:
    assert Between(0.5, 0.25, 0.0).of_share(0.5) == Between(0.75, 0.625, 0.5)
    assert shares(Between(7.0, 0.5, -1.0)).tolist() == [1.0, 0.5, 0.0]
    assert saved_us(Shorten(ids(trained(), "gemm"), 7.0)) == 0
    assert saved_us(Shorten(ids(trained(), "gemm"), -1.0)) == saved_us(Shorten(ids(trained(), "gemm"), 0.0))


NO_THREAD = Shorten(Times(99, Intervals(np.array([0]), np.array([1_000_000]))), 0.0)


@pytest.mark.parametrize("edit", [*OF_NOTHING.values(), NO_THREAD], ids=[*OF_NOTHING, "times of no thread"])
def test_an_edit_of_nothing_saves_nothing(edit: Edit) -> None:
    assert saving(trained(), edit) == NO_SAVING
    assert Replay(trained()).savings([[]]) == [NO_SAVING]


def test_everything_removed_leaves_nothing_negative() -> None:
    facts = trained()
    found = saving(facts, Remove(np.arange(len(facts.rank.spans), dtype=np.int64)))
    assert 0 <= found.low_ns <= found.likely_ns <= found.high_ns <= 1_000_000


def test_savings_after_other_edits_are_what_is_left_to_save() -> None:
    facts = trained()
    replay, gemm, add = Replay(facts), ids(facts, "gemm"), ids(facts, "aten::add")
    first = [Shorten(gemm, 0.5)]
    alone, after = replay.savings([[Shorten(gemm, 0.5)]])[0], replay.savings([[Shorten(add, 0.5)]], after=first)[0]
    together = replay.savings([[Shorten(gemm, 0.5), Shorten(add, 0.5)]])[0]
    assert alone.likely_ns + after.likely_ns == together.likely_ns == 250_000


def test_without_a_host_recording_there_is_nothing_to_replay() -> None:
    with pytest.raises(Missing, match="host activity"):
        Replay(Drawing().work("k", (0, 5)).work("k", (6, 9)).facts())


def test_a_trace_without_calls_replays_as_measured() -> None:
    draw = Drawing()
    for number in range(3):
        draw.step(number, 100 * number, 100 * number + 100).op("aten::mm", 100 * number, 100 * number + 50)
        draw.work("k", (100 * number + 20, 100 * number + 90))
    replay = Replay(draw.facts())
    assert replay.step_times_ns([([], Estimate.LIKELY)]).tolist() == [replay.quality.step_time_ns]
