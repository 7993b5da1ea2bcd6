"""Tensors that are written as text."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.host.loops import loops
from diagnose.facts.host.texts import Texts, texts
from diagnose.synthetic.reading import facts_of

RANGE = '"Tensor.__repr__ (text)"'
FRAME = '"torch/_tensor_str.py(712): _str"'
CPU = "4 steps of 100\n1 threads, 2 cores\ncpu  aten::mm 0-10"


def of(synthetic: str) -> Texts:
    return texts(facts_of(synthetic))


@pytest.mark.parametrize("name", [RANGE, FRAME])
def test_how_many_and_how_long(name: str) -> None:
    found = of(f"{CPU} | {name} 20-30 | {name} 40-44 not in 3")
    assert (found.host_ns, found.steps_seen, found.idle_ns) == (12_666_667, 3, None)
    assert found.count == 2  # Five in three steps.


def test_one_inside_another_is_the_other() -> None:
    assert of(f"{CPU} | {RANGE} 20-30 | {FRAME} 21-29").host_ns == 10_000_000


def test_for_how_long_the_device_is_idle() -> None:
    synthetic = f"4 steps of 100\ncpu  aten::mm 0-10 | {RANGE} 20-50\ngpu  sgemm 10-30 @5 | sgemm 60-90 @8"
    assert of(synthetic).idle_ns == 20_000_000


def test_none_was_seen_where_none_can_be() -> None:
    with pytest.raises(Missing, match="tensors"):
        of(CPU)
    assert of(f'{CPU} | "train.py(3): main" 0-90').count == 0


def test_what_writes_text_is_no_loop() -> None:
    """Numbers are read one by one, ten times; as many are read elsewhere."""
    reading = "aten::item 21-21.5 x10 every 0.8"
    assert [loop.rounds for loop in loops(facts_of(f"{CPU} | {reading}"))] == [10]
    assert loops(facts_of(f"{CPU} | {RANGE} 20-30 | {reading}")) == ()
