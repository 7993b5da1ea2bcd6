"""What is missing is remembered as such, and keeps nothing alive."""

import gc
import weakref

import pytest

from diagnose.facts.core.base import Facts, Missing, optional
from diagnose.facts.core.breakdown import NO_DEVICE, breakdown, device_time
from diagnose.synthetic.reading import facts_of


def without_device() -> Facts:
    return facts_of("3 steps of 10\ncpu  aten::mm 1-2")


def test_the_same_is_missing_each_time() -> None:
    facts = without_device()
    for get in (device_time, device_time, breakdown):
        with pytest.raises(Missing) as raised:
            get(facts)
        assert raised.value == NO_DEVICE
    assert Missing("device work", "Buy a GPU.") != NO_DEVICE


def test_what_was_missing_of_a_rank_does_not_keep_its_tables() -> None:
    facts = without_device()
    assert optional(breakdown, facts) is None
    tables = weakref.ref(facts)
    del facts
    gc.collect()
    assert tables() is None
