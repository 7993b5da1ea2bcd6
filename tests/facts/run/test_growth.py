"""Steps that get longer, and what grows in them."""

from __future__ import annotations

import math

import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.run.growth import Count, growth
from diagnose.facts.run.trend import trend
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site

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
    rising, nearly = trend([1, 2, 3, 9]), trend([1, 3, 2, 9])
    assert rising is not None
    assert nearly is not None
    assert math.isclose(rising.chance, 1 / 24)
    assert math.isclose(nearly.chance, 4 / 24)
    assert trend([1]) is None


def test_equal_values_do_not_rise() -> None:
    even = trend([5, 5, 5, 5])
    assert even is not None
    assert even.each == 0
    assert math.isclose(even.chance, 1)


def test_a_graph_that_is_kept_over_all_steps_is_told_with_who_made_its_last_node() -> None:
    """Of step 5: nodes 0 to 5, of which 0 to 3 are of steps before the one before it."""
    kept = growth(training(6, carries=99)).kept
    assert kept is not None
    assert (kept.count.first, kept.count.last, kept.count.each) == (0, 4, 1)
    assert (kept.nodes.first, kept.nodes.last) == (2, 6)
    assert kept.forward == (1, 1)
    assert (kept.op, kept.site) == ("aten::add", Site("train.py", 9, "f"))
    assert kept.work.host_ns == 6_000_000  # In used steps 1 to 5 there are 1 to 5 old nodes of 2 ms.


def test_the_nodes_of_backward_passes_rise_by_one_a_step() -> None:
    """All steps but the last are counted, as that may be cut off."""
    found = growth(training(6, carries=99))
    assert (found.counts[Count.NODES].first, found.counts[Count.NODES].last) == (1, 5)
    assert [one.what for one in found.rises] == ["backward nodes"]


@pytest.mark.parametrize("carries", [0, 1, 2])
def test_a_graph_over_a_fixed_number_of_steps_is_meant(carries: int) -> None:
    found = growth(training(7, carries))
    assert found.kept is None
    assert not found.counts


def timed(*times: float) -> Facts:
    return facts_of(f"6 steps of 100\n2 threads, 4 cores\ntimed {' '.join(map(str, times))}\ncpu  aten::mm 0-50")


def test_times_rise_surely_over_many_steps() -> None:
    found = growth(timed(*(50 + 2 * step for step in range(10))))
    assert found.time is not None
    assert (found.time.first, found.time.last, found.time.each) == (50_000_000, 68_000_000, 2_000_000)


@pytest.mark.parametrize("times", [range(50, 55), (50, 70) * 10, [50 + step / 10 for step in range(20)]])
def test_few_steps_and_those_that_vary_or_hardly_rise_are_steady(times: list[float]) -> None:
    assert growth(timed(*times)).time is None


def test_what_takes_longer_in_each_step_is_named() -> None:
    sorts = "\n".join(f"cpu  aten::sort 50-{55 + 5 * step} in {step}" for step in range(6))
    times = " ".join(str(50 + 5 * step) for step in range(10))
    found = growth(facts_of(f"6 steps of 100\n2 threads, 4 cores\ntimed {times}\ncpu  aten::mm 0-50\n{sorts}")).grows
    assert found is not None
    assert found.name == "aten::sort"
    assert (found.ns.first, found.ns.each) == (10_000_000, 5_000_000)


def test_three_steps_do_not_tell() -> None:
    with pytest.raises(Missing, match="four steps"):
        growth(training(3, carries=99))
