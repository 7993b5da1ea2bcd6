"""What is copied, for whom, and what waits for it: of synthetic traces by hand, of real ones by a second count."""

import pytest

from diagnose.facts.core.base import Missing
from diagnose.facts.device.transfers import copy_before, host_born, tiny_copies, transfers
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.frames import Site
from tests.drawing import Drawing, names, two_steps

PAGEABLE, PINNED, READ = "HtoD (Pageable -> Device)", "HtoD (Pinned -> Device)", "DtoH (Device -> Pinned)"
WITHIN = "DtoD (Device -> Device)"
MIB = 1024 * 1024


def to(draw: Drawing, at: float, kind: str = PAGEABLE, size: int = MIB, stream: int = 7) -> Drawing:
    draw.op("aten::to", at, at + 20).op("aten::copy_", at + 1, at + 19)
    draw.copy(kind, (at + 3, at + 7), (at + 5, at + 10), size, stream=stream)
    return draw.call("cudaStreamSynchronize", at + 8, at + 12)


def test_a_transfer_with_its_calls_syncs_ops_and_what_it_exposes() -> None:
    draw = to(to(two_steps().frame("/home/me/train.py(9): train", -100, 200), 20), 120, size=3 * MIB)
    draw.launch("gemm", (121, 122), (127, 128))
    facts = draw.facts()
    (found,) = transfers(facts)
    assert (found.direction, found.host_memory) == (Direction.H2D, HostMemory.PAGEABLE)
    assert (found.asked_by, found.site) == ("aten::to", Site("/home/me/train.py", 9, "train"))
    assert names(facts, found.ids) == ["Memcpy HtoD (Pageable -> Device)"] * 2
    assert names(facts, found.call_ids) == ["cudaMemcpyAsync"] * 2
    assert names(facts, found.sync_ids) == ["cudaStreamSynchronize"] * 2
    assert names(facts, found.op_ids) == ["aten::to"]  # The second one launches the gemm as well.
    assert (found.total_copies, found.copies, found.bytes, found.largest_bytes) == (2, 1, 2 * MIB, 3 * MIB)
    assert (found.ns, found.exposed_ns) == (5_000, 4_500)
    # Calls at 23 to 27 and 28 to 32, copy from 25 to 30: idle for 2 + 2; in step 2 likewise.
    assert found.call_idle_ns == 4_000
    # The first op takes 20 us, of which the copy 5; the second counts its calls only: 8 us, of which 4 idle.
    assert (found.host_ns, found.host_idle_ns) == (14_000, 9_500)
    assert found.bandwidth_bytes_per_s == pytest.approx(4 * MIB / 10e-6)
    # One copies 1 MiB and one 3 in 5 us: a tenth and nine tenths of the way between their rates.
    assert found.most_bytes_per_s == pytest.approx((1.2 * MIB / 5e-6, 2.8 * MIB / 5e-6))


def test_transfers_are_apart_by_direction_memory_op_and_line() -> None:
    draw = two_steps().op("aten::copy_", 60, 70).copy(PINNED, (61, 62), (63, 65), 8)
    draw.frame("/home/me/a.py(1): f", 10, 45).frame("/home/me/b.py(2): g", 50, 80)
    to(to(to(draw, 20), 120), 150, READ, size=16)
    found = transfers(draw.facts())
    rows = [(one.direction.value, one.host_memory.value, one.asked_by, one.site and one.site.line) for one in found]
    assert rows == [
        ("HtoD", "pageable", "aten::to", 1),
        ("HtoD", "pageable", "aten::to", None),
        ("DtoH", "pinned", "aten::to", None),
        ("HtoD", "pinned", "aten::copy_", 2),
    ]


def test_copies_of_unused_steps_alone_are_no_transfer_but_are_acted_on_with_the_others() -> None:
    assert transfers(to(two_steps(), -90).facts()) == ()
    (found,) = transfers(to(to(two_steps(), -90), 20).launch("gemm", (101, 102), (103, 104)).facts())
    assert (len(found.ids), found.total_copies, found.copies, found.bytes) == (2, 1, 1, MIB // 2)


def test_a_copy_of_unknown_size_has_no_bytes() -> None:
    draw = two_steps().launch("Memcpy HtoD (Host -> Device)", (3, 5), (10, 30), cat="gpu_memcpy", api="hipMemcpyAsync")
    (found,) = transfers(draw.facts())
    assert (found.bytes, found.largest_bytes, found.bandwidth_bytes_per_s, found.ns) == (None, None, None, 10_000)
    with pytest.raises(Missing, match="sizes of copies"):
        tiny_copies(draw.facts())


def test_what_a_call_waits_for_is_its_own_copy_or_the_last_of_its_op() -> None:
    draw = two_steps().op("aten::to", 0, 50).op("aten::copy_", 2, 40)
    draw.copy(PINNED, (3, 4), (5, 6), 8).copy(READ, (7, 8), (9, 10), 16).copy(WITHIN, (11, 12), (13, 14), 32)
    draw.call("cudaStreamSynchronize", 15, 16).call("cudaStreamSynchronize", 45, 46)
    draw.op("aten::conv2d", 60, 70).call("cudaStreamSynchronize", 61, 62)
    facts = draw.facts()
    calls = facts.rank.spans.index[facts.rank.spans["kind"] == "runtime"].to_numpy()
    size = facts.rank.copies["bytes"].reindex(copy_before(facts, calls), fill_value=0)
    assert size.tolist() == [0, 8, 16, 32, 16, 0, 0, 0, 0]  # first; the copies; three syncs; last in each step.


def test_without_steps_host_time_is_that_of_the_window() -> None:
    draw = to(Drawing(), 0).launch("gemm", (14, 15), (16, 30))  # Device work begins at 5, in an op from 0 to 20.
    (found,) = transfers(draw.facts())
    assert (found.host_ns, len(found.op_ids)) == (6_000, 0)  # Calls from 3 to 7 and from 8 to 12; the op has the gemm.
    (found,) = transfers(to(Drawing(), 0).launch("gemm", (24, 25), (26, 30)).facts())
    assert (found.host_ns, len(found.op_ids)) == (15_000, 1)


def test_tiny_copies_of_any_direction_by_op_most_first() -> None:
    draw = to(two_steps(), 0, PINNED, size=65_536)
    for at in (20, 50, 110):
        draw.op("aten::copy_", at, at + 10).copy(WITHIN, (at + 2, at + 5), (at + 6, at + 8), 65_535)
    to(draw, 130, READ, size=4)
    facts = draw.facts()
    within, read = tiny_copies(facts)
    assert (within.direction, within.asked_by) == (Direction.D2D, "aten::copy_")
    assert (within.total_copies, within.copies) == (3, 2)
    assert names(facts, within.op_ids) == ["aten::copy_"] * 3
    assert (within.host_ns, within.host_idle_ns) == (15_000, 12_000)
    assert (read.direction, read.total_copies, names(facts, read.op_ids)) == (Direction.D2H, 1, ["aten::to"])


def test_an_op_goes_with_a_tiny_copy_only_if_it_starts_nothing_else() -> None:
    draw = two_steps().op("aten::index", 10, 60)
    to(draw, 20, PINNED, size=8).op("aten::gather", 45, 55).launch("gather", (50, 51), (52, 53))
    facts = draw.facts()
    (found,) = tiny_copies(facts)
    assert (found.asked_by, names(facts, found.op_ids)) == ("aten::index", ["aten::to"])


def test_no_copies_are_none_and_no_device_is_missing() -> None:
    for fact in (transfers, tiny_copies, host_born):
        assert fact(two_steps().facts()) == ()
        with pytest.raises(Missing, match="device work"):
            fact(Drawing().op("aten::to", 0, 5).facts())


def shaped(draw: Drawing, name: str, start: float, end: float, *dims: int) -> Drawing:
    return draw.op(name, start, end, **{"Input Dims": [list(dims), []]})


def move(draw: Drawing, at: float, *dims: int) -> Drawing:
    return shaped(draw, "aten::to", at, at + 20, *dims).copy(PAGEABLE, (at + 3, at + 7), (at + 5, at + 10), 64)


def test_a_tensor_made_on_the_host_and_moved_at_once() -> None:
    draw = two_steps()
    for at in (-90, 10, 110):
        shaped(draw.op("aten::zeros", at, at + 9), "aten::zero_", at + 5, at + 8, 4, 4)
        move(draw, at + 12, 4, 4)
    facts = draw.facts()
    (found,) = host_born(facts)
    assert (found.made_by, found.total_calls) == ("aten::zeros", 2)
    assert names(facts, found.ids) == ["aten::zeros"] * 3


def test_torch_tensor_is_known_by_what_it_calls() -> None:
    with_device = move(two_steps().op("aten::empty", 10, 12), 13).op("aten::lift_fresh", 34, 35)
    assert [one.made_by for one in host_born(with_device.facts())] == ["torch.tensor"]
    moved_later = move(two_steps().op("aten::lift_fresh", 10, 11).op("aten::detach_", 12, 14).op("detach_", 13, 14), 15)
    assert [one.made_by for one in host_born(moved_later.facts())] == ["torch.tensor"]


def test_what_is_not_made_on_the_host_out_of_nothing() -> None:
    received = move(two_steps().op("aten::zeros", 1, 4).op("aten::empty", 5, 6), 10)
    another_shape = move(shaped(two_steps().op("aten::zeros", 1, 9), "aten::zero_", 5, 8, 3), 12, 4, 4)
    on_device = move(two_steps().op("aten::zeros", 1, 9).launch("fill", (3, 4), (5, 6)), 12)
    not_at_once = move(two_steps().op("aten::zeros", 1, 4).op("aten::add", 5, 6), 10)
    not_moved = two_steps().op("aten::zeros", 1, 9).op("aten::to", 12, 20)
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    batch = move(two_steps().span("user_annotation", loader, 1, 9).op("aten::lift_fresh", 3, 4), 12)
    other_thread = move(two_steps().op("aten::zeros", 1, 9, tid=50), 12)
    other_thread.events.sort(key=lambda event: event["tid"] != 50)  # It is the first thread of the recording.
    for draw in (received, another_shape, on_device, not_at_once, not_moved, batch, other_thread):
        assert host_born(draw.facts()) == ()
