"""What FSDP gathers and scatters: by unit, pass and micro-batch."""

import pytest

from diagnose.facts.communication.sharding import Sharding, sharding, shards
from diagnose.facts.core.base import Facts
from diagnose.synthetic.reading import facts_of

GLOO = "2 threads, 2 cores"


def of(*rows: str) -> Facts:
    """Four steps of 100 ms, of which the first is not used."""
    return facts_of("\n".join(("4 steps of 100", *rows)))


def sharded(*rows: str) -> Sharding:
    return sharding(of(*rows))


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
    return of(GLOO, f"cpu  {' | '.join(row for row in rows if row)}", f"cpu threads  {' | '.join(gloo)}")


def test_each_collective_is_of_a_unit_a_pass_and_a_round() -> None:
    facts = of(
        GLOO,
        f"cpu  {gather('layers.0', 0)} | {gather('layers.1', 10)} | {gather('layers.0', 30, 'pre_backward')}",
        f"cpu  {scatter('layers.1', 40)} | {scatter('layers.0', 50)} | optimizer 60-70",
        "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 12-13 | gloo:all_gather 32-33",
        "cpu threads  gloo:all_reduce 42-43 | gloo:all_reduce 52-53",
    )
    found = shards(facts)
    assert [found.units[k] for k in found.unit[:5]] == ["layers.0", "layers.1", "layers.0", "layers.1", "layers.0"]
    assert found.gathers[:5].tolist() == [True, True, True, False, False]
    assert found.backward[:5].tolist() == [False, False, True, True, True]
    assert found.turn.tolist() == [0] * 5 + [1] * 5 + [2] * 5 + [3] * 5
    assert found.round.tolist() == [1] * 5 + [2] * 5 + [3] * 5 + [4] * 5
    assert set(found.bytes.tolist()) == {4_000}  # 1000 elements of 4 bytes, gathered or to be scattered


def test_fsdp1_names_no_units_and_a_rank_s_part_is_one_of_as_many_as_there_are_ranks() -> None:
    facts = of(
        GLOO,
        "rank 0 of 2",
        "cpu  FullyShardedDataParallel._pre_forward 0-3 | c10d::allgather_ 1-2 shapes=[[],[[500]],[],[],[]]",
        "cpu  FullyShardedDataParallel._pre_backward_hook 20-23",
        "cpu  c10d::allgather_ 21-22 shapes=[[],[[500]],[],[],[]] | optimizer 60-70",
        "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 22-23",
    )
    found = shards(facts)
    assert (found.units, found.backward[:2].tolist()) == (("",), [False, True])
    assert set(found.bytes.tolist()) == {2 * 4 * 500}


def test_all_but_the_last_reduction_before_the_optimizer_are_early() -> None:
    """Where nothing is gathered for the backward pass, the second round needs no gather either."""
    found = sharding(two_rounds())
    assert (found.rounds, found.alike, found.gradient_bytes) == (2, True, 4_000)
    assert (found.early.calls, found.early.ns, len(found.early.host_ids)) == (1, 8_000_000, 4)  # a range in each step
    assert (found.kept.calls, found.kept.ns) == (1, 8_000_000)
    assert sharding(two_rounds('"FSDP::pre_forward (a)" 40-43')).kept.calls == 0


def test_parameters_that_are_gathered_for_the_backward_pass_are_so_in_each_round() -> None:
    found = sharded(
        GLOO,
        f"cpu  {gather('a', 0)} | {gather('a', 10, 'pre_backward')} | {scatter('a', 20)}",
        f"cpu  {gather('a', 40)} | {gather('a', 50, 'pre_backward')} | {scatter('a', 60)} | optimizer 90-95",
        "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 12-13 | gloo:all_reduce 22-23",
        "cpu threads  gloo:all_gather 42-43 | gloo:all_gather 52-53 | gloo:all_reduce 62-63",
    )
    assert (found.rounds, found.early.calls, found.kept.calls) == (2, 1, 0)


def test_one_reduction_for_each_step_of_the_optimizer_is_none_too_many() -> None:
    """Of a job without FSDP there is nothing."""
    found = sharded(
        GLOO,
        f"cpu  {gather('a', 0)} | {scatter('a', 20)} | optimizer 90-95",
        "cpu threads  gloo:all_gather 2-3 | gloo:all_reduce 22-23",
    )
    assert (found.rounds, found.early.calls, found.kept.calls) == (1, 0, 0)
    found = sharded("cpu  c10d::allreduce_ 1-2 | optimizer 60-70", "gpu 20  allreduce 2-9 @1.5")
    assert (found.rounds, found.early.calls) == (0, 0)


def test_gathers_of_the_backward_pass_are_exposed_where_the_main_thread_stands() -> None:
    """From 32 to 40 ms, of which an op runs for 3."""
    found = sharded(
        GLOO,
        f"cpu  {gather('a', 0)} | {gather('a', 30, 'pre_backward')} | aten::mm 37-45 | {scatter('a', 50)}",
        'cpu  "FSDP::all_gather_copy_out (a)" 3.1-3.2',
        'cpu  "FSDP::pre_backward (a)" 34-36 | "FSDP::all_gather_copy_out (a)" 35-35.5 | optimizer 60-70',
        "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 32-40 | gloo:all_reduce 52-53",
    )
    assert (found.units_again, found.units, found.bytes_again) == (1, 1, 4_000)
    assert (found.again.calls, found.again.ns, found.again.exposed_ns) == (1, 8_000_000, 5_000_000)
    assert len(found.again.host_ids) == 2 * 4  # the gather, and the copy out of it that is in the backward pass


def test_a_gather_on_a_device_is_exposed_while_no_kernel_computes() -> None:
    """From 40 to 70 ms, of which a kernel computes for 10."""
    found = sharded(
        f"cpu  {gather('a', 0)} | {gather('a', 30, 'pre_backward')} | optimizer 60-61",
        "gpu  sgemm 20-50 @5 | sgemm 71-95 @50",
        "gpu 20  allgather 2-19 @1.2 operation=_allgather_base | allgather 40-70 @31.2 operation=_allgather_base",
    )
    assert (found.again.calls, found.again.ns, found.again.exposed_ns) == (1, 30_000_000, 20_000_000)
    assert found.bytes_again is None


SIZE = "operation=_allgather_base dtype=BFloat16 in_elements"


def small(*units: str, elements: str = "2000") -> Facts:
    """Units whose gathers take 2 ms each, one after the other; a backward range ends the round."""
    host = [gather(unit, 4 * at) for at, unit in enumerate(units)]
    work = [f"allgather {50 + 4 * at}-{52 + 4 * at} @{4 * at + 1.2} {SIZE}={elements}" for at in range(len(units))]
    after = '"FSDP::pre_backward (z)" 40-40.1 | optimizer 42-43'
    return of(f"cpu  {' | '.join(host)} | {after}", f"gpu 20  {' | '.join(work)}", "gpu  sgemm 90-95 @41")


def test_units_of_one_block_need_one_gather_where_it_takes_as_long() -> None:
    """Of one size: 2 ms are 4 kB's share of 4 kB + 1 MiB in bytes. One of three times as many takes 1.008 as long."""
    found = sharding(small("h.0.a", "h.0.b", "h.0.c", "h.1.a"))
    assert (found.units, found.blocks, found.unit_bytes) == (4, 2, 4_000)
    assert found.latency_share == pytest.approx((1 << 20) / (4_000 + (1 << 20)))
    assert (found.needless.calls, found.needless.ns) == (2, 4_000_000)  # of h.0.b and h.0.c
    ((_, times),) = found.hooks
    assert times.total == 4 * 2 * 3_000_000  # of their hooks, 3 ms each; the others' stay


@pytest.mark.parametrize(
    ("units", "blocks"),
    [
        (("h.0", "h.1", "h.2", ""), 4),  # a unit for each block, and the root
        (("0.a", "0.b", "1.a"), 2),
        (("encoder.layers.0", "decoder.layers.0", "decoder.layers.0.mlp"), 2),
        (("embed", "norm", "head"), 3),  # without numbers, nobody knows
    ],
)
def test_a_block_is_what_a_number_follows(units: tuple[str, ...], blocks: int) -> None:
    assert sharding(small(*units)).blocks == blocks


def test_where_sizes_differ_their_times_tell_what_starting_takes() -> None:
    """1 MB in 2 ms and 3 MB in 4 ms: 1 ms to start and 1 ns a byte. Together they take 5 ms, as 2 of 3 ms do."""
    facts = of(
        f"cpu  {gather('h.0.a', 0)} | {gather('h.0.b', 4)}",
        'cpu  "FSDP::pre_backward (z)" 40-40.1 | optimizer 42-43',
        f"gpu 20  allgather 50-52 @1.2 {SIZE}=500000 | allgather 54-58 @5.2 {SIZE}=1500000",
        "gpu  sgemm 90-95 @41",
    )
    found = sharding(facts)
    assert (found.latency_share, found.needless.calls) == (pytest.approx(1 / 3), 0)  # the usual one carries 2 MB


def test_an_all_reduce_behind_what_is_scattered_is_of_the_same_unit() -> None:
    facts = of(
        f'cpu  "FSDP::post_backward_reduce (h.0)" 0-9 | {gather("h.0", 20)} | optimizer 42-43',
        "cpu  c10d::_reduce_scatter_base_ 1-2 | c10d::allreduce_ 3-4",
        "gpu 20  reduce_scatter 50-52 @1.2 operation=_reduce_scatter_base dtype=Float in_elements=100",
        "gpu 20  allreduce 53-55 @3.2 operation=allreduce dtype=Float in_elements=50 | allgather 60-61 @21.2",
        "gpu  sgemm 90-95 @41",
    )
    assert sharding(facts).needless.calls == 0


def test_a_gather_that_begins_once_its_predecessor_s_unit_has_computed_is_late() -> None:
    """10 ms of nothing else; the 30 of compute before them could hide 27."""
    found = sharded(
        f'cpu  {gather("h.0", 0)} | {gather("h.1", 42)} | "FSDP::pre_backward (h.1)" 46-46.1 | optimizer 47-48',
        "gpu  sgemm 11-41 @3.5 | sgemm 55-99 @45.5",
        "gpu 20  allgather 1.5-11 @1.2 operation=_allgather_base | allgather 44-54 @43.2 operation=_allgather_base",
    )
    assert (len(found.late_ids), found.late_ns, found.late_share) == (3, 10_000_000, 1.0)
    assert not found.compared
    # No compute could hide a first gather, which has nothing before it, and a second that begins once it is over.
    found = sharded(
        f'cpu  {gather("h.0", 0)} | {gather("h.1", 4)} | "FSDP::pre_backward (h.1)" 9-9.1 | optimizer 10-11',
        "gpu  sgemm 31-41 @3.5 | sgemm 61-99 @8.5",
        "gpu 20  allgather 1.5-31 @1.2 operation=_allgather_base | allgather 31-61 @5.2 operation=_allgather_base",
    )
    assert found.late_ns == 0


def test_one_unit_could_be_hidden_by_all_that_is_computed() -> None:
    """30 ms of gathering and as many of reducing; each step computes for 38, of which 34.2 could hide something."""
    found = sharded(
        'cpu  "FSDP::pre_forward" 0-1 | "FSDP::all_gather" 0.2-0.8 | c10d::_allgather_base_ 0.4-0.6',
        'cpu  "FSDP::post_backward_reduce" 2-3 | c10d::_reduce_scatter_base_ 2.4-2.6 | optimizer 4-5',
        "gpu  sgemm 31-69 @1.5",
        "gpu 20  allgather 1-31 @0.5 operation=_allgather_base",
        "gpu 20  reduce_scatter 69-99 @2.5 operation=_reduce_scatter_base",
    )
    assert (found.late_ns, found.late_share) == (60_000_000, 1.0)


def test_without_a_backward_pass_each_step_is_a_round() -> None:
    found = sharded(
        GLOO,
        f"cpu  {gather('h.0', 0)} | {gather('h.1', 10)}",
        "cpu threads  gloo:all_gather 2-3 | gloo:all_gather 12-13",
    )
    assert found.units == 2
