"""Whether all ranks compute the same."""

from __future__ import annotations

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.data.equal_batches import EqualBatches, equal_batches
from diagnose.synthetic.reading import facts_of

NODE = '"autograd::engine::evaluate_function:'
STEP = f"""2 steps of 100
2 threads, 4 cores
rank 0 of 4
cpu  aten::linear 0-20 sequence=5 in 0 | aten::linear 0-20 sequence=15 in 1 | aten::randperm 20-30
cpu  {NODE} AddmmBackward0" 30-60 sequence=5 "Fwd thread id"=1 in 0
cpu  {NODE} AddmmBackward0" 30-60 sequence=15 "Fwd thread id"=1 in 1
cpu  {NODE} torch::autograd::AccumulateGrad" 60-70 | "Optimizer.step#SGD.step" 80-90
"""


def of(*lines: str) -> EqualBatches | None:
    return equal_batches(facts_of(STEP + "\n".join(lines)))


def test_what_takes_as_long_as_there_are_rows() -> None:
    """Neither what adds to gradients, where ranks wait for each other, nor the optimizer, nor what has no backward."""
    found = of("equal batches")
    assert found is not None
    assert (found.equal, found.ranks, found.work.host_ns) == (True, 4, 50_000_000)


def test_different_batches() -> None:
    found = of("different batches")
    assert found is not None
    assert not found.equal


def test_ranks_that_do_not_share_gradients() -> None:
    assert of() is None


def test_some_ranks_have_something_of_their_own_to_do() -> None:
    """Pairs may split a model, and so take the same batches."""
    of_two = 'operation=allreduce group_size=2 group_ranks="[0, 1]"'
    assert of("equal batches", f"gpu  allreduce 62-66 @61 {of_two}") is None
    assert of("equal batches", f"gpu  allreduce 62-66 @61 {of_two.replace('=2', '=4')}") is not None


def test_the_run_has_to_be_known() -> None:
    with pytest.raises(Missing, match="DataLoader options"):
        equal_batches(facts_of("2 steps of 100\nrank 0 of 2\ncpu  aten::linear 0-20"))
