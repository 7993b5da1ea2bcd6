"""Ops at the times of another recording of the same steps, which holds none."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.core.steps import steps
from diagnose.source import ranks, recording
from diagnose.trace.model import IntegrityNote, Rank, Severity
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
    folder: Path,
    ops: Drawing,
    device: Drawing,
    first: int,
    bounds_us: list[int],
    settling: int = 0,
    op_ns: float = 0.0,
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
    """Unix times of the spans of a name."""
    spans = rank.spans[rank.spans["name"] == name]
    start = (spans["start_ns"] + rank.zero_unix_ns) / 1000
    return list(zip(start, start + spans["dur_ns"] / 1000, strict=True))


def note(rank: Rank) -> IntegrityNote:
    (found,) = (one for one in rank.integrity if "of device time is in both" in one.effect)
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
    assert rank.context is not None
    assert rank.context.rank.timing == rank.context.rank.device_timing
    assert (steps(Facts(rank)).numbers, steps(Facts(rank)).mean_ns) == ((21,), 50_000)


def test_what_recording_an_op_took_is_no_time_of_its_own(tmp_path: Path) -> None:
    """Of 4 us each: half of that when it begins, half when it ends, and of these halves again half before and after.

    From call to call 46 us are 14.93 until mm ends (2 of 30 us less there), 18 until add begins, 9.33 in add.
    """
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
    assert note(rank).effect == "rank0.device.json.gz holds other work: only 88% of device time is in both."
    assert rank.context is not None
    assert rank.context.rank.timing is not None
    assert rank.context.rank.timing.first_step == 7


def test_a_recording_that_cannot_be_read_leaves_the_other(tmp_path: Path) -> None:
    rank = read(tmp_path, with_ops("pointwise"), Drawing(), 20, [1000, 1050])
    assert times_us(rank, "gemm") == [(30, 60)]
    assert (rank.integrity[-1].effect, rank.integrity[-1].severity) == (recording.NOT_TIMED, Severity.WARNING)


TABLES = ("spans", "kernels", "copies", "syncs", "collectives", "ops", "memory", "links", "lines")


@pytest.mark.parametrize("name", ["nanogpt_eager", "hf_trainer_bert", "imagenet_resnet50", "word_language_model"])
def test_a_real_recording_at_its_own_times_stays_as_it_is(corpus: Path, name: str) -> None:
    rank = ranks.read(corpus / "h100" / name / "rank0.trace.json.gz")
    found = retimed(rank, rank, rank.steps, op_ns=0.0)
    assert found.steps == rank.steps
    for table in TABLES:
        pd.testing.assert_frame_equal(getattr(found, table), getattr(rank, table))


def test_a_real_recording_at_twice_its_times_takes_twice_as_long(corpus: Path) -> None:
    rank = ranks.read(corpus / "h100" / "nanogpt_eager" / "rank0.trace.json.gz")
    twice = replace(
        rank,
        spans=rank.spans.assign(start_ns=2 * rank.spans["start_ns"], dur_ns=2 * rank.spans["dur_ns"]),
        steps=tuple(replace(one, start_ns=2 * one.start_ns, end_ns=2 * one.end_ns) for one in rank.steps),
    )
    found = retimed(rank, twice, twice.steps, op_ns=0.0)
    inside = found.spans["step"].to_numpy() >= 0
    for column in ("start_ns", "dur_ns"):
        np.testing.assert_array_equal(found.spans[column][inside], twice.spans[column][inside])
    assert found.steps == twice.steps
