"""What FSDP gathers and scatters: by unit, pass and micro-batch."""

from __future__ import annotations

from diagnose.facts.communication.sharding import regathers, scattered_rounds, shards
from diagnose.facts.core.base import Facts
from diagnose.synthetic.reading import facts_of

GLOO = "2 threads, 2 cores"


def of(*rows: str) -> Facts:
    """Four steps of 100 ms, of which the first is not used."""
    return facts_of("\n".join(("4 steps of 100", *rows)))


def gather(unit: str, start: float, within: str = "") -> str:
    """Ranges of FSDP2 from `start`, 3 ms long, as in its `pre_forward` or what else is told; asked for 1 ms later."""
    around = f'"FSDP::{within or "pre_forward"} ({unit})" {start}-{start + 3}'
    own = f'"FSDP::all_gather ({unit})" {start + 0.5}-{start + 2.5}'
    return f"{around} | {own} | c10d::_allgather_base_ {start + 1}-{start + 1.5} shapes=[[1000],[500],[],[],[]]"


def scatter(unit: str, start: float) -> str:
    """Asked for 1 ms after `start`, with 1000 elements of 4 bytes."""
    own = f'"FSDP::post_backward_reduce ({unit})" {start}-{start + 3}'
    return f"{own} | c10d::_reduce_scatter_base_ {start + 1}-{start + 1.5} shapes=[[500],[1000],[],[],[]]"


def two_rounds(second: str = "") -> Facts:
    """A unit of which two micro-batches go forward and back; gloo takes 10 ms a call, but starts 0.6 ms late."""
    rows = [gather("a", 0), scatter("a", 20), second or gather("a", 40), scatter("a", 60), "optimizer 90-95"]
    gloo = [f"gloo:all_{kind} {at}-{at + 8}" for kind, at in (("gather", 1.6), ("reduce", 21.6))]
    gloo += [f"gloo:all_gather {41.6}-{49.6}"] * (not second) + ["gloo:all_reduce 61.6-69.6"]
    return of(GLOO, f"cpu  {' | '.join(one for one in rows if one)}", f"cpu threads  {' | '.join(gloo)}")


def test_each_collective_is_of_a_unit_a_pass_and_a_round() -> None:
    found = shards(
        of(
            GLOO,
            f"cpu  {gather('layers.0', 0)} | {gather('layers.1', 10)} | {gather('layers.0', 30, 'pre_backward')}",
            f"cpu  {scatter('layers.1', 40)} | {scatter('layers.0', 50)} | optimizer 60-70",
            "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 12-13 | gloo:all_gather 32-33",
            "cpu threads  gloo:all_reduce 42-43 | gloo:all_reduce 52-53",
        )
    )
    assert [found.units[k] for k in found.unit[:5]] == ["layers.0", "layers.1", "layers.0", "layers.1", "layers.0"]
    assert found.gathers[:5].tolist() == [True, True, True, False, False]
    assert found.backward[:5].tolist() == [False, False, True, True, True]
    assert found.turn.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert found.round.tolist() == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5
    assert set(found.bytes.tolist()) == {4_000}  # 1000 elements of 4 bytes, gathered or to be scattered


def test_fsdp1_names_no_units_and_a_rank_s_part_is_one_of_as_many_as_there_are_ranks() -> None:
    found = shards(
        of(
            GLOO,
            "rank 0 of 2",
            "cpu  FullyShardedDataParallel._pre_forward 0-3 | c10d::allgather_ 1-2 shapes=[[],[[500]],[],[],[]]",
            "cpu  FullyShardedDataParallel._pre_backward_hook 20-23",
            "cpu  c10d::allgather_ 21-22 shapes=[[],[[500]],[],[],[]] | optimizer 60-70",
            "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 22-23",
        )
    )
    assert found.units == ("",)
    assert found.backward[:2].tolist() == [False, True]
    assert set(found.bytes.tolist()) == {2 * 4 * 500}


def test_all_but_the_last_reduction_before_the_optimizer_are_early() -> None:
    found = scattered_rounds(two_rounds())
    assert (found.rounds, found.alike, found.gradient_bytes) == (2, True, 4_000)
    assert (found.early.calls, found.early.ns, found.early.bytes) == (1, 8_000_000, 4_000)
    assert len(found.early.host_ids) == 4  # a range in each recorded step


def test_where_nothing_is_gathered_for_the_backward_pass_the_second_round_needs_no_gather() -> None:
    found = scattered_rounds(two_rounds())
    assert (found.again.calls, found.again.ns) == (1, 8_000_000)
    assert scattered_rounds(two_rounds('"FSDP::pre_forward (a)" 40-43')).again.calls == 0


def test_parameters_that_are_gathered_for_the_backward_pass_are_so_in_each_round() -> None:
    found = scattered_rounds(
        of(
            GLOO,
            f"cpu  {gather('a', 0)} | {gather('a', 10, 'pre_backward')} | {scatter('a', 20)}",
            f"cpu  {gather('a', 40)} | {gather('a', 50, 'pre_backward')} | {scatter('a', 60)} | optimizer 90-95",
            "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 12-13 | gloo:all_reduce 22-23",
            "cpu threads  gloo:all_gather 42-43 | gloo:all_gather 52-53 | gloo:all_reduce 62-63",
        )
    )
    assert (found.rounds, found.early.calls, found.again.calls) == (2, 1, 0)


def test_one_reduction_for_each_step_of_the_optimizer_is_none_too_many() -> None:
    found = scattered_rounds(
        of(
            GLOO,
            f"cpu  {gather('a', 0)} | {scatter('a', 20)} | optimizer 90-95",
            "cpu threads  gloo:all_gather 2-3 | gloo:all_reduce 22-23",
        )
    )
    assert (found.rounds, found.early.calls, found.again.calls) == (1, 0, 0)


def test_of_a_job_without_fsdp_there_is_nothing() -> None:
    found = scattered_rounds(of("cpu  c10d::allreduce_ 1-2 | optimizer 60-70", "gpu 20  allreduce 2-9 @1.5"))
    assert (found.rounds, found.early.calls) == (0, 0)


def test_gathers_of_the_backward_pass_are_exposed_where_the_main_thread_stands() -> None:
    """From 32 to 40 ms, of which an op runs for 3."""
    found = regathers(
        of(
            GLOO,
            f"cpu  {gather('a', 0)} | {gather('a', 30, 'pre_backward')} | aten::mm 37-45 | {scatter('a', 50)}",
            'cpu  "FSDP::all_gather_copy_out (a)" 3.1-3.2',
            'cpu  "FSDP::pre_backward (a)" 34-36 | "FSDP::all_gather_copy_out (a)" 35-35.5 | optimizer 60-70',
            "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 32-40 | gloo:all_reduce 52-53",
        )
    )
    assert (found.units, found.forward_units, found.bytes) == (1, 1, 4_000)
    assert (found.traffic.calls, found.traffic.ns, found.traffic.exposed_ns) == (1, 8_000_000, 5_000_000)
    assert len(found.traffic.host_ids) == 2 * 4  # the gather, and the copy out of it that is in the backward pass


def test_a_gather_on_a_device_is_exposed_while_no_kernel_computes() -> None:
    """From 40 to 70 ms, of which a kernel computes for 10."""
    found = regathers(
        of(
            f"cpu  {gather('a', 0)} | {gather('a', 30, 'pre_backward')} | optimizer 60-61",
            "gpu  sgemm 20-50 @5 | sgemm 71-95 @50",
            "gpu 20  allgather 2-19 @1.2 operation=_allgather_base | allgather 40-70 @31.2 operation=_allgather_base",
        )
    )
    assert (found.traffic.calls, found.traffic.ns, found.traffic.exposed_ns) == (1, 30_000_000, 20_000_000)
    assert found.bytes is None
