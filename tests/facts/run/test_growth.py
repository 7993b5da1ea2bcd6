"""Steps that get longer, and what grows in them."""

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.facts.core.base import Facts
from diagnose.facts.run.growth import Measured, growing_sizes, trend, what_grows
from diagnose.facts.run.longer_steps import Count, growth
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Timed
from diagnose.trace.model import VaryingShapes
from tests.rules import built_in

MS = 1_000_000
NODE = '"autograd::engine::evaluate_function: AddBackward0"'


def training(steps: int, carries: int) -> Facts:
    """In step n an op makes node n; the backward pass runs it, and those of at most so many steps before."""
    items = [f'cpu  aten::add 0-1 sequence={n} in {n} stack="train.py(9): f"' for n in range(steps)]
    for step in range(steps):
        for place, node in enumerate(range(max(step - carries, 0), step + 1)):
            begin = 2 + 2 * place
            items.append(f'cpu  {NODE} {begin}-{begin + 2} sequence={node} "Fwd thread id"=1 in {step}')
    return facts_of("\n".join([f"{steps} steps of 100", "2 threads, 4 cores", *items]))


def test_the_chance_of_an_order_is_that_of_as_few_falling_pairs() -> None:
    """Of 24 orders of four values one has no falling pair, and three have one."""
    assert math.isclose(trend([1, 2, 3, 9]).chance, 1 / 24)
    assert math.isclose(trend([1, 3, 2, 9]).chance, 4 / 24)
    assert trend([1]).chance == 1


def test_equal_values_do_not_rise() -> None:
    even = trend([5, 5, 5, 5])
    assert (even.each, even.chance) == (0, pytest.approx(1))


def test_a_graph_that_is_kept_over_all_steps_is_told_with_who_made_its_last_node() -> None:
    """Of step 5: nodes 0 to 5, of which 0 to 3 are of steps before the one before it."""
    kept = growth(training(6, carries=99)).kept
    assert (kept.count.first, kept.count.last, kept.count.each) == (0, 4, 1)
    assert (kept.nodes.first, kept.nodes.last) == (2, 6)
    assert kept.forward == (1, 1)
    assert (kept.op, kept.site) == ("aten::add", Site("train.py", 9, "f"))
    assert kept.work.host_ns == 6_000_000  # In used steps 1 to 5 there are 1 to 5 old nodes of 2 ms.


def test_the_nodes_of_backward_passes_rise_by_one_a_step() -> None:
    """All steps but the last are counted, as that may be cut off."""
    facts = training(6, carries=99)
    found = growth(facts)
    assert [(count, one.first, one.last) for count, one in found.counts.items()] == [(Count.NODES, 1, 5)]
    notes = [note.what for note in pipeline.present(facts, [built_in("growing_steps")]).sections.integrity]
    assert "Steps grow: backward nodes grow from 1 to 5, 1/step." in notes


@pytest.mark.parametrize("carries", [0, 1, 2])
def test_a_graph_over_a_fixed_number_of_steps_is_meant(carries: int) -> None:
    found = growth(training(7, carries))
    assert found.kept is None
    assert not found.counts


def timed(*times: float, **more: object) -> Facts:
    facts = facts_of(f"6 steps of 100\n2 threads, 4 cores\ntimed {' '.join(map(str, times))}\ncpu  aten::mm 0-50")
    assert facts.rank.context is not None
    context = msgspec.structs.replace(facts.rank.context, rank=replace(facts.rank.context.rank, **more))
    return Facts(msgspec.structs.replace(facts.rank, context=context))


def test_a_pause_that_gets_longer_is_seen_in_whole_cycles_before_and_after_the_recording() -> None:
    """Of three steps one pauses, for 10 ms more each time, in steps 0 to 17 and from 30 on."""
    pauses = [ns for pause in (*range(60, 120, 10), 160, 170) for ns in (50, 50, pause)]
    after = Timed(first_step=30, wall_ns=tuple(MS * ns for ns in pauses[18:]))
    found = growth(timed(*pauses[:18], cycle=3, unprofiled_after=after)).time
    assert found is not None
    assert (found.first, found.last, found.each) == pytest.approx((160 / 3 * MS, 90 * MS, 10 / 9 * MS), rel=0.01)
    assert growth(timed(*pauses[:18], cycle=3)).time is None  # six cycles are few


def test_times_rise_surely_over_many_steps() -> None:
    found = growth(timed(*(50 + 2 * step for step in range(10))))
    assert (found.time.first, found.time.last, found.time.each) == (50_000_000, 68_000_000, 2_000_000)


@pytest.mark.parametrize("times", [range(50, 55), (50, 70) * 10, [50 + step / 10 for step in range(20)]])
def test_few_steps_and_those_that_vary_or_hardly_rise_are_steady(times: list[float]) -> None:
    assert growth(timed(*times)).time is None


@pytest.mark.parametrize(("computes", "grows"), [(range(40, 60, 2), True), ([40] * 10, False)])
def test_steps_that_take_longer_and_compute_no_more_are_of_a_busy_machine(computes: Sequence[int], grows: bool) -> None:
    times = tuple(MS * (50 + 2 * step) for step in range(10))
    alone = Timed(first_step=0, wall_ns=times, cpu_times_ns=tuple(MS * ms for ms in computes))
    assert (growth(timed(1, unprofiled=alone)).time is not None) == grows


def test_what_takes_longer_in_each_step_is_named() -> None:
    sorts = "\n".join(f"cpu  aten::sort 50-{55 + 5 * step} in {step}" for step in range(6))
    times = " ".join(str(50 + 5 * step) for step in range(10))
    drawing = f"6 steps of 100\n2 threads, 4 cores\ntimed {times}\ncpu  aten::mm 0-50\n{sorts}"
    (found,) = growth(facts_of(drawing)).grows
    assert (found.measured, found.names) == (Measured.TIME, ("aten::sort",))
    assert (found.rise.first, found.rise.each) == (10_000_000, 5_000_000)


def counting(*items: str, steps: int = 6) -> str:
    """Steps with one op and its node, and `items`; `{more}` in them is more by one in each step, from 1."""
    said = [f'cpu  aten::mm 0-5 sequence=0 | {NODE} 90-95 sequence=0 "Fwd thread id"=1']
    said += [f"{item.replace('{more}', f'x{step + 1}')} in {step}" for item in items for step in range(steps)]
    return "\n".join([f"{steps} steps of 100", "2 threads, 4 cores", *said])


def test_what_runs_once_more_in_each_step_is_told_with_its_line_and_since_when() -> None:
    """Used steps 1 to 5 have 2 to 6 of it: 4 on average, 20 ms, of which step 0 had 1; Python is 1 ms after each."""
    (found,) = growth(facts_of(counting('cpu  aten::std 10-15 {more} every 6 stack="train.py(9): hook"'))).grows
    assert (found.measured, found.names, found.site) == (Measured.OPS, ("aten::std",), Site("train.py", 9, "hook"))
    assert (found.rise.first, found.rise.last, found.rise.each) == (2, 6, 1)
    assert (found.at_start, found.left, found.from_start) == (1, 0.25, True)
    assert (found.in_forward, found.in_backward) == (True, False)
    assert found.work.host_ns == 20_000_000
    assert found.times.total == (1 + 2 + 3 + 4 + 5) * 1_000_000


def test_ops_of_the_backward_pass_count_where_their_nodes_were_made() -> None:
    items = []
    for step in range(6):
        for one in range(step + 1):
            node, begin = 100 * step + one, 10 + 3 * one
            items.append(f'cpu  aten::mul {begin}-{begin + 1} sequence={node} in {step} stack="train.py(9): loss"')
            begin += 50
            items.append(f'cpu  {NODE} {begin}-{begin + 1} sequence={node} "Fwd thread id"=1 in {step}')
    found = growth(facts_of("\n".join(["6 steps of 100", "2 threads, 4 cores", *items])))
    assert set(found.counts) == {Count.NODES, Count.OPS}
    (more,) = found.grows
    assert (more.rise.first, more.rise.each) == (4, 2)
    assert (more.in_forward, more.in_backward) == (True, True)
    assert more.site == Site("train.py", 9, "loss")


def test_nodes_without_numbers_are_told_with_no_line() -> None:
    """Of which step they are is not known: it may be a graph that is kept."""
    (found,) = growth(facts_of(counting(f"cpu  {NODE} 10-11 {{more}}"))).grows
    assert (found.in_forward, found.in_backward, found.site) == (False, True, None)
    assert (found.rise.first, found.rise.each) == (3, 1)


def test_what_constant_ops_of_the_same_line_take_is_not_of_the_rise() -> None:
    place = 'stack="train.py(9): hook"'
    drawing = counting(f"cpu  aten::std 10-11 {{more}} {place}", f"cpu  aten::conv2d 30-80 {place}")
    (found,) = growth(facts_of(drawing)).grows
    assert found.names == ("aten::std",)
    assert found.left == 0.25


NAMED = {"std": 10, "lt": 30, "mean": 50}


def test_where_no_line_and_no_name_is_most_of_the_rise_all_that_rises_is_told() -> None:
    lines = [f'cpu  aten::{name} {at}-{at + 2} {{more}} stack="train.py({at}): f"' for name, at in NAMED.items()]
    (found,) = growth(facts_of(counting(*lines))).grows
    assert set(found.names) == {f"aten::{name}" for name in NAMED}
    assert (found.rise.first, found.rise.each) == (6, 3)


def test_kernels_that_become_more_are_told_with_the_op_that_launches_them() -> None:
    """In step n it launches n + 1 of 3 ms, of which the first used step, 1, has 2."""
    lines = ["6 steps of 100", 'cpu  aten::_foreach_add 10-60 stack="train.py(9): f"', "cpu  aten::mm 0-5"]
    lines.append(f'cpu  {NODE} 90-95 sequence=0 "Fwd thread id"=1')
    for step in range(6):
        lines += [f"gpu  foreach {at}-{at + 3} @{at} in {step}" for at in range(11, 12 + 3 * step, 3)]
    found = growth(facts_of("\n".join(lines)))
    assert set(found.counts) == {Count.WORK}
    (more,) = found.grows
    assert (more.measured, more.names) == (Measured.WORK, ("aten::_foreach_add",))
    assert (more.rise.first, more.rise.last, more.rise.each) == (2, 6, 1)
    assert more.work.device_ns == 12_000_000


def test_what_began_later_than_the_run_is_told_so() -> None:
    """Steps 3 to 7 have 2 to 10 of it: at this rate there would have been 4 less than none in step 0."""
    more = "\n".join(f"cpu  aten::std 10-11 x{2 * (step - 2)} in {step}" for step in range(3, 8))
    facts = Facts(facts_of(f"{counting(steps=8)}\n{more}").rank, (3, 7))
    found = what_grows(facts, Measured.OPS)
    assert (found.at_start, found.left, found.from_start) == (-4, 0, False)


def test_counts_that_rise_by_chance_do_so_unevenly() -> None:
    """In used steps 1 to 5 the median of slopes is 9.75: a rise of 1 is less than half of it."""
    counts = [1, 2, 10, 11, 30, 40]
    some = "\n".join(f"cpu  aten::std 10-11 x{count} in {step}" for step, count in enumerate(counts))
    found = growth(facts_of(f"{counting()}\n{some}"))
    assert set(found.counts) == {Count.OPS}
    assert found.grows == ()


BANK = "\n".join(
    f'cpu  aten::mul 10-20 shapes=[[{8 * step + 8},4]] in {step} stack="train.py(3): loss"\n'
    f'cpu  aten::cat 50-60 shapes=[[[{8 * step + 8},4],[8,4]]] in {step} stack="train.py(9): push"'
    for step in range(6)
)
"""In step n there are 8 n + 8 rows; the op of line 9 adds 8."""


def test_what_an_op_takes_is_told_of_the_one_that_adds_to_it() -> None:
    """In used steps 1 to 5 there are 32 rows on average, of which there were 8 in step 0; both ops take 10 ms."""
    (found,) = growth(facts_of(f"6 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-1\n{BANK}")).grows
    assert (found.measured, found.names, found.site) == (Measured.SIZES, ("aten::cat",), Site("train.py", 9, "push"))
    assert (found.rise.first, found.rise.last, found.rise.each) == (8, 48, 8)
    assert (found.inputs[0], found.inputs[-1]) == ((8, 4), (48, 4))
    assert (found.at_start, found.left, found.from_start) == (8, 0.25, True)
    assert found.work.host_ns == 20_000_000


def test_steps_without_an_op_that_adds_are_told_with_the_first_that_takes_more() -> None:
    only = "\n".join(line for line in BANK.splitlines() if "mul" in line)
    text = f"6 steps of 100\n2 threads, 4 cores\n{only}\n{only.replace('mul 10-20', 'add 30-70')}"
    (found,) = growth(facts_of(text)).grows
    assert (found.names, found.site) == (("aten::mul",), Site("train.py", 3, "loss"))


@pytest.mark.parametrize(
    ("rows", "alone", "longer"),
    [
        ((15616, 15872, 16128), True, True),  # 256 more in each of 61 steps: from 0
        ((15616, 15871, 16128), False, True),  # The same, but 255 and 257.
        ((128, 192, 256), False, True),  # It began two steps before.
        ((128, 129, 130), False, True),  # It was 67 when the run began, more than half.
        ((15616, 15700, 16128), False, False),  # 84 is less than half of 256, the median slope.
        ((128, 200, 230), False, False),  # Even enough, but neither the same in each nor since the run began.
        ((128, 192, 192), False, False),
        ((256, 192, 128), False, False),
    ],
)
def test_three_sizes_tell_if_they_rise_evenly_and_have_doubled_or_steps_get_longer(
    rows: Sequence[int], alone: bool, longer: bool
) -> None:
    facts = facts_of("6 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-50")
    shapes = tuple(f"[[{count}, 64], [64, 8]]" for count in rows)
    ids = np.flatnonzero((facts.rank.spans["name"] == "aten::mm").to_numpy())
    varying = VaryingShapes((61, 62, 63), (shapes,), ids, np.zeros_like(ids))
    facts = Facts(msgspec.structs.replace(facts.rank, varying=varying))
    assert [growing_sizes(facts, longer=one) is not None for one in (False, True)] == [alone, longer]
