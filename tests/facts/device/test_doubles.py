"""What computes in double precision."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.doubles import doubles
from diagnose.synthetic.reading import facts_of

DOUBLE = 'shapes=[[4,4],[4,4]] types=["double","double"]'
FLOAT = 'shapes=[[4,4],[4,4]] types=["float","float"]'
MS = 1_000_000


def test_on_the_device_the_work_of_ops_with_double_inputs_counts() -> None:
    facts = facts_of(
        f"""
        4 steps of 100
        cpu  aten::linear 1-5 {DOUBLE} | aten::mm 6-7 {FLOAT} | device_sync 8-99
        cpu  aten::addmm 2-4 {DOUBLE}
        gpu  sgemm 10-40 @3 | sgemm 40-90 @6.5
        """
    )
    found = doubles(facts)
    assert (found.ns, found.longest, found.on_cpu) == (30 * MS, "aten::linear", False)
    assert len(found.ids) == len(found.work_ids) == 4
    assert set(facts.rank.spans["name"].iloc[found.ids]) == {"aten::linear"}  # none inside another


def test_on_the_cpu_the_ops_themselves_count() -> None:
    found = doubles(
        facts_of(
            f"4 steps of 100\n2 threads, 2 cores\ncpu  aten::mm 1-5 {DOUBLE} | aten::add 6-16 {DOUBLE} | aten::mm 20-60"
        )
    )
    assert (found.ns, found.longest, found.on_cpu) == (14 * MS, "aten::add", True)


def test_numbers_of_python_are_no_tensors_in_double_precision() -> None:
    number = 'shapes=[[4,4],[]] types=["float","double"]'
    assert doubles(facts_of(f"4 steps of 100\ncpu  aten::mul 1-5 {number}\ngpu  pointwise 10-40 @3")).ns == 0


def test_nothing_is_double_where_types_say_so_and_nothing_is_known_where_they_are_not_recorded() -> None:
    assert doubles(facts_of(f"4 steps of 100\ncpu  aten::mm 1-5 {FLOAT}\ngpu  sgemm 10-40 @3")).ns == 0
    with pytest.raises(Missing, match="shapes"):
        doubles(facts_of("4 steps of 100\ncpu  aten::mm 1-5\ngpu  sgemm 10-40 @3"))
