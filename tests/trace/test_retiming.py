"""Ops at the times of another recording of the same steps, which holds none."""

import gzip
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec.structs import replace

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.source import ranks, recording
from diagnose.trace.model import IntegrityNote, Rank, Severity, Step
from diagnose.trace.retiming import retimed
from tests.drawing import Drawing


def with_ops(*names: str) -> Drawing:
    """Steps of 100 us, of two ops that start a kernel each: the second of them has one of these names in each step."""
    draw = Drawing()
    for k, name in enumerate(names):
        at = 100 * k
        draw.step(7 + k, at, at + 100)
        draw.op("aten::mm", at + 10, at + 40).launch("gemm", (at + 20, at + 24), (at + 30, at + 60))
        draw.op("aten::add", at + 60, at + 90).launch(name, (at + 70, at + 74), (at + 80, at + 90))
    return draw


def without_ops(count: int) -> Drawing:
    """The same steps in 50 us each, from 1000 us on."""
    draw = Drawing()
    for k in range(count):
        at = 1000 + 50 * k
        draw.launch("gemm", (at + 4, at + 6), (at + 8, at + 38))
        draw.launch("pointwise", (at + 30, at + 34), (at + 40, at + 50))
    return draw


def read(
    folder: Path, ops: Drawing, device: Drawing, first: int, bounds_us: list[int], settling: int = 0, op_ns: float = 0.0
) -> Rank:
    """As a recording in a folder; `first` step of that without ops, and its bounds."""
    for name, draw in (("trace", ops), ("device", device)):
        (folder / f"rank0.{name}.json.gz").write_bytes(gzip.compress(draw.text().encode()))
    timed = {"first_step": first, "wall_ns": (1000 * np.diff(bounds_us)).tolist(), "settling": settling}
    timed["bounds_unix_ns"] = [1000 * at for at in bounds_us]
    rank = {"rank": 0, "trace": "rank0.trace.json.gz", "device": "rank0.device.json.gz", "device_timing": timed}
    rank["event_cost"] = {"op_ns": op_ns}
    rank["timing"] = {"first_step": 7, "wall_ns": [100_000, 100_000]}
    (folder / "manifest.json").write_text(json.dumps({"schema_version": 1, "ranks": [rank]}))
    (files,) = recording.find([folder]).ranks
    return recording.read(files)


def times_us(rank: Rank, name: str) -> list[tuple[float, float]]:
    spans = rank.spans[rank.spans["name"] == name]
    start = (spans["start_ns"] + rank.zero_unix_ns) / 1000
    return list(zip(start, start + spans["dur_ns"] / 1000, strict=True))


def note(rank: Rank) -> IntegrityNote:
    (found,) = (one for one in rank.integrity if "rank0.device.json.gz" in one.what + one.effect)
    return found


def test_calls_and_work_have_the_other_times_and_ops_lie_between(tmp_path: Path) -> None:
    rank = read(tmp_path, with_ops("pointwise", "pointwise"), without_ops(2), 20, [1000, 1050, 1100])
    assert times_us(rank, "gemm") == [(1008, 1038), (1058, 1088)]
    assert times_us(rank, "cudaLaunchKernel") == [(1004, 1006), (1030, 1034), (1054, 1056), (1080, 1084)]
    # From the step's begin to the first call 20 us become 4; from call to call 46 become 24; to the step's end 26 16.
    assert times_us(rank, "aten::mm") == [
        (1002, pytest.approx(1006 + 16 * 24 / 46, abs=1e-3)),
        (1052, pytest.approx(1056 + 16 * 24 / 46, abs=1e-3)),
    ]
    assert times_us(rank, "aten::add")[0] == (
        pytest.approx(1006 + 36 * 24 / 46, abs=1e-3),
        pytest.approx(1034 + 16 * 16 / 26, abs=1e-3),
    )
    assert times_us(rank, "ProfilerStep#7") == [(1000, 1050)]
    assert [(one.number, one.start_ns, one.end_ns) for one in rank.steps] == [(20, 0, 50_000), (21, 50_000, 100_000)]
    assert note(rank) == IntegrityNote(
        "Times come from rank0.device.json.gz, which holds no ops.",
        "Ops are of other steps of the same run; 100.0% of device time is in both.",
        Severity.NOTE,
    )
    # The manifest tells of the steps that are shown: the device's from its last work of one step to that of the next.
    assert rank.context.rank.timing == rank.context.rank.device_timing
    assert (steps(Facts(rank)).numbers, steps(Facts(rank)).mean_ns) == ((21,), 50_000)


def test_what_recording_an_op_took_is_no_time_of_its_own(tmp_path: Path) -> None:
    """Of 4 us each: half of that when it begins, half when it ends, and of these halves again half before and after.
    From call to call 46 us are 14.93 until mm ends (2 of 30 us less there), 18 until add begins, 9.33 in add."""
    ops, device = with_ops("pointwise", "pointwise"), without_ops(2)
    rank = read(tmp_path, ops, device, 20, [1000, 1050, 1100], op_ns=4000)
    (_, end), _ = times_us(rank, "aten::mm")
    (start, _), _ = times_us(rank, "aten::add")
    whole = (16 + 10) * 28 / 30 + 18
    assert end == pytest.approx(1006 + 24 * 16 * 28 / 30 / whole, abs=1e-3)
    assert start == pytest.approx(1006 + 24 * (16 * 28 / 30 + 18) / whole, abs=1e-3)


def test_the_last_steps_are_the_same_ones(tmp_path: Path) -> None:
    """Of three without ops the first was too slow, as its recorder still became faster."""
    rank = read(tmp_path, with_ops("pointwise", "pointwise"), without_ops(3), 20, [1000, 1050, 1100, 1150], settling=1)
    assert [one.number for one in rank.steps] == [21, 22]
    assert times_us(rank, "gemm") == [(1058, 1088), (1108, 1138)]


def test_work_that_is_in_one_only_lies_between_the_work_around(tmp_path: Path) -> None:
    """Of 160 us that are in both, 4 us are not: what a third call started."""
    ops = with_ops("pointwise", "pointwise").launch("fill", (26, 28), (65, 69))
    rank = read(tmp_path, ops, without_ops(2), 20, [1000, 1050, 1100])
    # gemm ends at 60 -> 1038, pointwise starts at 80 -> 1040.
    assert times_us(rank, "fill") == [(1038.5, 1038.9)]


def test_a_thread_of_another_number_is_known_by_what_it_starts(tmp_path: Path) -> None:
    """Of a backward pass on a thread of its own; without ops the numbers of both are others."""
    ops, device = with_ops("pointwise", "pointwise"), Drawing()
    for k in range(2):
        ops.op("MmBackward0", 100 * k + 91, 100 * k + 97, tid=200)
        ops.launch("dgrad", (100 * k + 92, 100 * k + 93), (100 * k + 93, 100 * k + 98), tid=200)
        at = 1000 + 50 * k
        device.launch("gemm", (at + 4, at + 6), (at + 8, at + 38), tid=900)
        device.launch("pointwise", (at + 30, at + 34), (at + 40, at + 45), tid=900)
        device.launch("dgrad", (at + 44, at + 45), (at + 45, at + 50), tid=800)
    rank = read(tmp_path, ops, device, 20, [1000, 1050, 1100])
    assert times_us(rank, "gemm") == [(1008, 1038), (1058, 1088)]
    assert times_us(rank, "dgrad") == [(1045, 1050), (1095, 1100)]
    assert note(rank).severity is Severity.NOTE


def test_other_work_is_not_retimed(tmp_path: Path) -> None:
    """Ten of each 40 us are of another kernel in the one recording."""
    rank = read(tmp_path, with_ops("pointwise", "softmax"), without_ops(2), 20, [1000, 1050, 1100])
    assert times_us(rank, "gemm") == [(30, 60), (130, 160)]
    assert note(rank).severity is Severity.WARNING
    why = "holds only 88% of the device's time in the same order"
    assert note(rank).effect == f"rank0.device.json.gz {why}. Record again for truer times."
    assert rank.context.rank.timing.first_step == 7


def test_a_recording_that_cannot_be_read_leaves_the_other(tmp_path: Path) -> None:
    rank = read(tmp_path, with_ops("pointwise"), Drawing(), 20, [1000, 1050])
    assert times_us(rank, "gemm") == [(30, 60)]
    assert (rank.integrity[-1].effect, rank.integrity[-1].severity) == (recording.NOT_TIMED, Severity.WARNING)


def test_fewer_steps_are_not_used(tmp_path: Path) -> None:
    rank = read(tmp_path, with_ops("pointwise", "pointwise", "pointwise"), without_ops(2), 20, [1000, 1050, 1100])
    assert (times_us(rank, "gemm")[0], len(rank.steps)) == ((30, 60), 3)
    assert note(rank).effect.startswith("rank0.device.json.gz holds 2 of 3 steps.")


def launches(order: list[int], starts_us: int, every_us: int) -> Drawing:
    """A step of kernels that are told apart by their names."""
    draw = Drawing()
    for place, name in enumerate(order):
        at = starts_us + every_us * place
        draw.launch(f"kernel{name}", (at, at + 1), (at + 2, at + 3))
    return draw


def test_one_launch_in_another_order_leaves_the_others(tmp_path: Path) -> None:
    """The last of 40 comes first: 39 are in both."""
    order = list(range(40))
    device = launches([39, *order[:39]], 1000, 2)
    rank = read(tmp_path, launches(order, 0, 10).step(7, 0, 400), device, 20, [1000, 1080])
    assert times_us(rank, "kernel0") == [(1004, 1005)]
    assert times_us(rank, "kernel38") == [(1080, 1081)]
    assert "97.5% of device time is in both" in note(rank).effect


def test_a_stream_that_two_threads_fill_in_another_order(tmp_path: Path) -> None:
    ops, device = with_ops("pointwise", "pointwise"), without_ops(2)
    for draw, begin, every, threads in ((ops, 92, 100, (200, 300)), (device, 1044, 50, (300, 200))):
        for k in range(2):
            for place, tid in enumerate(threads):
                at = begin + every * k + 2 * place
                draw.launch(f"copy{tid}", (at, at + 1), (at + 1, at + 1.5), stream=20, tid=tid)
    rank = read(tmp_path, ops, device, 20, [1000, 1050, 1100])
    assert times_us(rank, "gemm") == [(1008, 1038), (1058, 1088)]
    assert times_us(rank, "copy200") == [(1047, 1047.5), (1097, 1097.5)]


TABLES = ("kernels", "copies", "syncs", "collectives", "ops", "memory", "links", "lines")


@pytest.mark.parametrize("name", ["nanogpt_eager", "hf_trainer_bert", "imagenet_resnet50", "word_language_model"])
def test_a_real_recording_at_its_own_times_stays_as_it_is(corpus: Path, name: str) -> None:
    rank = ranks.read(corpus / "h100" / name / "rank0.trace.json.gz")
    found = retimed(rank, rank, rank.steps, op_ns=0.0)
    assert found.steps == rank.steps
    kept = np.flatnonzero(rank.spans["kind"] != "overhead")  # Of what was recorded beside ops the recorder's own goes.
    pd.testing.assert_frame_equal(found.spans, rank.spans.iloc[kept].reset_index(drop=True))
    for table in TABLES:
        ours, theirs = getattr(found, table), getattr(rank, table)
        if table == "links":
            ours, theirs = (one.drop(columns=["from_id", "to_id"]) for one in (ours, theirs))
        pd.testing.assert_frame_equal(ours.reset_index(drop=True), theirs.reset_index(drop=True))


@pytest.mark.parametrize("name", ["nanogpt_eager", "hf_trainer_bert", "imagenet_resnet50", "word_language_model"])
def test_our_own_event_at_the_end_of_a_step_is_in_the_same_step(corpus: Path, name: str) -> None:
    """The clock records an event before it notes the time: ranges of steps close later still."""
    rank = ranks.read(corpus / "h100" / name / "rank0.trace.json.gz")
    spans = rank.spans[rank.spans["name"] == "cudaEventRecordWithFlags"]
    ends = (spans["start_ns"] + spans["dur_ns"]).to_numpy()
    noted = [int(ends[ends <= step.end_ns].max()) + 1000 for step in rank.steps]
    bounds = [rank.steps[0].start_ns, *noted]
    marks = tuple(Step(k, begin, end) for k, (begin, end) in enumerate(pairwise(bounds)))
    assert "100.0% of device time is in both" in retimed(rank, rank, marks).integrity[-1].effect


def test_a_real_recording_at_twice_its_times_takes_twice_as_long(corpus: Path) -> None:
    rank = ranks.read(corpus / "h100" / "nanogpt_eager" / "rank0.trace.json.gz")
    twice = replace(
        rank,
        spans=rank.spans.assign(start_ns=2 * rank.spans["start_ns"], dur_ns=2 * rank.spans["dur_ns"]),
        steps=tuple(replace(one, start_ns=2 * one.start_ns, end_ns=2 * one.end_ns) for one in rank.steps),
    )
    found = retimed(rank, twice, twice.steps, op_ns=0.0)
    kept = twice.spans[twice.spans["kind"] != "overhead"].reset_index(drop=True)
    inside = found.spans["step"].to_numpy() >= 0
    for column in ("start_ns", "dur_ns"):
        np.testing.assert_array_equal(found.spans[column][inside], kept[column][inside])
    assert found.steps == twice.steps
