"""Are gradients reduced for every micro-batch?"""

import pytest

from diagnose.facts.communication.ddp import Accumulation, accumulation
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

FORWARD = "DistributedDataParallel.forward"


def of(*rows: str) -> Accumulation:
    return accumulation(facts_of("\n".join(("5 steps of 100", *rows))))


def test_all_but_the_last_reduction_before_the_optimizer_are_early() -> None:
    found = of(
        f"cpu  {FORWARD} 0-1 | c10d::allreduce_ 2-3 | {FORWARD} 4-5 | c10d::allreduce_ 6-7 | {FORWARD} 8-9",
        "cpu  c10d::allreduce_ 10-11 | optimizer 12-13",
        "gpu  allreduce 20-30 @2.5 | allreduce 40-45 @6.5 | allreduce 50-90 @10.5",
    )
    assert (found.rounds, found.alike) == (3, True)
    assert len(found.op_ids) == 2 * 5
    assert found.ns == 15_000_000
    assert not len(found.ids)
    assert not found.waits.size


def test_on_the_host_the_thread_that_waits_for_early_reductions_does_so_in_vain() -> None:
    found = of(
        "2 threads, 2 cores",
        f"cpu       {FORWARD} 0-1 | c10d::allreduce_ 2-3 | {FORWARD} 40-41 | c10d::allreduce_ 42-43 | optimizer 80-81",
        "cpu gloo  gloo:all_reduce 3-33 | gloo:all_reduce 43-73",
    )
    assert (found.rounds, found.alike) == (2, True)
    assert len(found.ids) == 5
    assert found.waits.total == 5 * 30_000_000
    assert found.ns == 30_000_000


def test_models_with_gradients_of_their_own_are_told_by_how_often_they_reduce() -> None:
    found = of(
        f"cpu  {FORWARD} 0-1 | c10d::allreduce_ 2-3 x2 | {FORWARD} 6-7 | c10d::allreduce_ 8-9 | optimizer 12-13",
        "gpu  sgemm 0.1-90",
    )
    assert found.rounds == 2
    assert not found.alike


@pytest.mark.parametrize("optimizer", ["optimizer 5-6 | optimizer 11-12", "optimizer 11-12 in 0,2,4"])
def test_a_reduction_for_each_step_of_an_optimizer_is_none_too_many(optimizer: str) -> None:
    """Two models, each with its optimizer; or one whose optimizer steps every second time, reducing once."""
    second = "" if "in" in optimizer else f" | {FORWARD} 7-8 | c10d::allreduce_ 9-10"
    reduces = "2-3 in 0,2,4" if "in" in optimizer else "2-3"
    found = of(f"cpu  {FORWARD} 0-1 | c10d::allreduce_ {reduces}{second} | {optimizer}", "gpu  sgemm 0.1-90")
    assert found.rounds == 1
    assert not len(found.op_ids)


def test_nothing_is_reduced_without_ddp_and_nothing_is_known_without_ops() -> None:
    assert of("cpu  c10d::allreduce_ 2-3 | optimizer 12-13", "gpu  sgemm 0.1-90").rounds == 0
    with pytest.raises(Missing, match="framework ops"):
        of("gpu  allreduce 20-30")
