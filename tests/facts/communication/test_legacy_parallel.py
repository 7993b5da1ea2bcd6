"""DataParallel, and reductions on the host of what GPUs have computed."""

from __future__ import annotations

import pytest

from diagnose.facts.communication.legacy_parallel import HostReductions, data_parallel_use, host_reductions
from diagnose.facts.core.base import Missing
from diagnose.synthetic.reading import facts_of

MS = 1_000_000
BACK = '"autograd::engine::evaluate_function: MmBackward0"'


def test_what_data_parallel_moves() -> None:
    found = data_parallel_use(
        facts_of("""
        4 steps of 100
        cpu      DataParallel.forward 0-20 | Scatter 1-2 | Broadcast 3-11 | Gather 19-20
        cpu      ReduceAddCoalesced 50-52 | aten::mm 60-61
        gpu      p2p 5-35 @4 | sgemm 40-99 @15
        gpu 1:7  sgemm 40-80 @16
        gpu 1:8  nccl 30-37 @5
        """)
    )
    assert found.devices == 2
    assert found.ns == 32 * MS  # 5 to 37 ms
    assert found.op_ns == 12 * MS
    assert (len(found.ids), len(found.op_ids)) == (8, 16)


def test_another_data_parallel_is_none() -> None:
    assert data_parallel_use(facts_of("cpu DistributedDataParallel.forward 0-1\ngpu p2p 5-6")).devices == 0


def reduced(header: str = "rank 0 of 2", size: str = "shapes=[[[25000000]],[]]", more: str = "") -> HostReductions:
    return host_reductions(
        facts_of(f"""
        4 steps of 100
        {header}
        cpu       DistributedDataParallel.forward 0-5 | aten::mm 1-1.1
        cpu       {BACK} 10-12
        cpu       c10d::allreduce_ 10.5-11 {size} types=["TensorList",""]
        cpu       sync 72.1-99.99
        cpu gloo  gloo:all_reduce 11-71
        gpu       sgemm 1.1-10.5 @1.05 | adam 72.05-99.95 @72
        gpu 20    d2h 10.6-10.9 @10.55 | h2d 71.05-71.95 @71.02 from gloo
        {more}
        """)
    )


def test_gradients_that_are_reduced_on_the_host() -> None:
    found = reduced()
    assert (found.calls, found.bytes, found.backend, found.ranks) == (1, 100 * MS, "gloo", 2)
    assert (found.ns, found.blocked.ns) == (60 * MS, 59 * MS)  # 1 ms of it in the backward pass's op
    assert len(found.copy_ids) == 8
    # 0.1 ms, and 2 x 1/2 of the bytes at 0.7 of 450 GB/s
    assert found.nccl_ns == pytest.approx(100_000 + 100 * MS / (0.7 * 450), rel=1e-6)
    assert (found.one_machine, found.shared) == (None, False)
    assert reduced("rank 0 of 2\n machine a of 2 devices").one_machine


def test_the_size_and_the_ranks_may_not_be_known() -> None:
    assert reduced(size="").bytes is None
    with pytest.raises(Missing, match="how many ranks"):
        reduced(header="")


def test_a_training_on_the_cpu_reduces_there() -> None:
    found = host_reductions(
        facts_of(f"""
        4 steps of 100
        2 threads, 4 cores
        rank 0 of 2
        cpu       DistributedDataParallel.forward 0-5 | {BACK} 10-12 | c10d::allreduce_ 10.5-11
        cpu gloo  gloo:all_reduce 11-71
        """)
    )
    assert found.calls == 0
