"""What is gathered from all ranks although no gradient needs it."""

from __future__ import annotations

import pytest

from diagnose.facts.communication.gathers import HostGathers, host_gathers
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

FORWARD, UPDATE = "DistributedDataParallel.forward 40-60", '"Optimizer.step#SGD.step" 90-99'


def of(*rows: str, gloo: str) -> HostGathers:
    """Three steps of 100 ms, of which the last two are used; `gloo` is what its thread does."""
    lines = ("3 steps of 100", "2 threads, 4 cores", "rank 0 of 2", f"cpu  {' | '.join(rows)}", f"cpu threads  {gloo}")
    return host_gathers(facts_of("\n".join(lines)))


def gather(start: int, sent: str = "[[512,100]]") -> str:
    return f"c10d::allgather_ {start}-{start + 1} shapes=[[],{sent},[],[],[]]"


def test_results_are_waited_for_until_they_are_there() -> None:
    """From 1 to 22 ms after the start of each step; 512 x 100 elements of 4 bytes are sent."""
    found = of(gather(1), FORWARD, UPDATE, gloo="gloo:all_gather 2-22")
    assert (found.calls, found.bytes, found.blocked.ns) == (1, 204_800, 21_000_000)


def test_what_lies_between_two_of_a_row_counts_too() -> None:
    """Sizes of objects are gathered, then the objects, of 512 and 512 x 100 elements."""
    found = of(gather(1, "[[512]]"), gather(10), FORWARD, UPDATE, gloo="gloo:all_gather 2-4 | gloo:all_gather 11-31")
    assert (found.calls, found.bytes, found.blocked.ns) == (2, 2_048 + 204_800, 30_000_000)


def test_gathering_in_a_pass_or_before_the_optimizer_may_be_needed_for_the_update() -> None:
    for start in (41, 61, 70):
        assert of(gather(start), FORWARD, UPDATE, gloo=f"gloo:all_gather {start + 1}-{start + 9}").calls == 0


def test_sums_are_no_gathering() -> None:
    reduced = "c10d::allreduce_ 1-2 shapes=[[[512,100]],[],[]]"
    assert of(reduced, FORWARD, UPDATE, gloo="gloo:all_reduce 2-22").calls == 0


def test_without_ddp_it_is_not_known_where_a_pass_begins() -> None:
    with pytest.raises(Missing, match="forward passes"):
        of(gather(1), UPDATE, gloo="gloo:all_gather 2-22")


def test_without_collectives_nothing_is_known() -> None:
    with pytest.raises(Missing):
        host_gathers(facts_of("1 steps of 100\ncpu  aten::mm 0-9"))
