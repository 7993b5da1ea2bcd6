"""Measuring changed ops: for real on the CPU, and what is kept when the process that measures hangs or dies."""

import json
from pathlib import Path

import pytest

from diagnose.capture import measuring
from diagnose.capture.measuring import CannotMeasure, Setting, measure
from diagnose.source.beside import read_costs
from diagnose.trace.manifest import Flags
from diagnose.trace.measured import MeasuredOp, Measurements, OpSpec

CPU = Setting(device="", flags=Flags(threads=1))
MM = OpSpec("aten::mm", "[[64,64],[64,64]]", '["double","double"]')


def said(tmp_path: Path, *lines: str) -> str:
    """A program in place of Python that says these lines, as the real one does, and then runs a last one."""
    path = tmp_path / "python"
    text = ["#!/bin/sh", "cat > /dev/null", *(f"echo 'diagnose-timed:{line}'" for line in lines[:-1]), lines[-1]]
    path.write_text("\n".join(text) + "\n")
    path.chmod(0o755)
    return str(path)


READY = json.dumps({"device": "", "torch": "2.9"})
DONE = json.dumps({"index": 0, "change": "fp32", "before_ns": 4e6, "after_ns": 1e6, "spread": 0.1, "runs": 5})


@pytest.mark.slow
def test_ops_are_called_again_as_they_are_and_after_a_change() -> None:
    asked = [
        ("aten::mm", "[[256,256],[256,256]]", '["double","double"]', "fp32"),
        ("aten::addmm", "[[64],[32,48],[48,64],[],[]]", '["float","float","float","Scalar","Scalar"]', "bf16"),
        ("aten::mm", "[[64,30],[30,50]]", '["float","float"]', "padded"),
        ("aten::_softmax", "[[64,128],[],[]]", '["double","Scalar","Scalar"]', "fp32"),
        ("aten::native_layer_norm", "[[8,64],[],[64],[64],[]]", '["double","","double","double",""]', "fp32"),
        ("aten::tanh_backward", "[[64,64],[64,64]]", '["double","double"]', "fp32"),
        ("aten::convolution", "[[1,3,8,8],[4,3,3,3],[],[],[],[],[],[],[]]", '["float","float"]', "bf16"),
        ("aten::mm", "[[1000000000,1000000],[1000000,1]]", '["float","float"]', "bf16"),
        ("mine::op", "[[8,8]]", '["float"]', "bf16"),
    ]
    found = measure([(OpSpec(*one), [change]) for *one, change in asked], CPU, seconds=120)
    assert found.device == ""
    measured, others = found.ops[:6], found.ops[6:]
    for one in measured:
        assert one.why == ""
        assert one.before_ns
        assert one.after_ns
        assert one.runs >= 5
    # 2 x 256^3 operations on numbers of half the size.
    assert (measured[0].after_ns or 0) < (measured[0].before_ns or 0)
    whys = ["its stride was not recorded", "it may need 8000008.0 GB", "torch has no such op"]
    assert [one.why.partition(",")[0] for one in others] == whys


FOUR_D = "[[2,3,32,32],[8,3,3,3],[8],[],[],[],[],[],[]]"
BACKWARD = "[[2,8,16,16],[2,3,32,32],[8,3,3,3],[],[],[],[],[],[],[],[]]"
LIST = "ScalarList"
NUMBERS = [LIST, LIST, LIST, "Scalar", LIST, "Scalar"]
STEPPED = ["[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
HEADS = json.dumps([[2, 4, 64, 16]] * 5 + [[2, 64, 4], [], [], [], []])
FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu_backward"
FLOATS = ["float"] * 3
EAGER = {"foreach": False}
QKV = "[[8,64,16],[8,64,16],[8,64,16]]"
ADAM = "[[64,64],[64],[32,64]]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "shapes", "types", "scalars", "change"),
    [
        ("aten::convolution", FOUR_D, ["double"] * 3 + NUMBERS, ["", "", "", *STEPPED], "fp32"),
        (
            *("aten::convolution_backward", BACKWARD, [*["double"] * 3, LIST, *NUMBERS, LIST]),
            *(["", "", "", "[8]", *STEPPED, "[False, True, True]"], "fp32"),
        ),
        (FLASH, HEADS, [*["double"] * 6, "Scalar", "Scalar", "", ""], [*[""] * 6, "0.", "True", "", ""], "fp32"),
        ("attention", QKV, FLOATS, [], "fused"),
        ("attention backward", QKV, FLOATS, [], "bf16+fused"),
        ("torch.optim.AdamW", ADAM, FLOATS, EAGER, "fused"),
        ("torch.optim.RMSprop", ADAM, FLOATS, EAGER, "foreach"),
    ],
)
def test_convolutions_attention_and_optimizers_are_measured(
    op: str, shapes: str, types: list[str], scalars: object, change: str
) -> None:
    spec = OpSpec(op, shapes, json.dumps(types), scalars=json.dumps(scalars))
    (one,) = measure([(spec, [change])], CPU, seconds=60).ops
    assert (one.why, one.runs >= 5) == ("", True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "shapes", "types", "scalars", "change", "why"),
    [
        ("torch.optim.Sharp", ADAM, FLOATS, {}, "fused", "torch has no such op"),
        ("torch.optim.Rprop", ADAM, FLOATS, {}, "fused", "TypeError: "),
        ("torch.optim.SGD", ADAM, [], {}, "fused", "its parameters were not recorded"),
        ("torch.optim.SGD", ADAM, FLOATS, {"lr": "x"}, "fused", "its settings are not known"),
        ("attention", "[[8,64],[8,64]]", FLOATS[:2], [], "fused", "its queries, keys and values were"),
        ("attention", "[[9,9,9],[9,1000000,9],[9,9,9]]", FLOATS, [], "fused", "RuntimeError: "),
        ("attention", json.dumps([[99, 99999999, 9]] * 3), FLOATS, [], "fused", "it may need "),
        ("aten::mm", "[[-5,8],[8,8]]", FLOATS[:2], [], "bf16", "its sizes are those of no tensor"),
        ("aten::sum", "[[8],[],[],[]]", ["float", "", "", ""], ["", "[oh", "False", ""], "bf16", "its dim is "),
        ("aten::from_file", "[[],[],[]]", ["", "", ""], [], "bf16", "its filename was not recorded"),
    ],
)
def test_what_cannot_be_called_again_is_not_measured(
    op: str, shapes: str, types: list[str], scalars: object, change: str, why: str
) -> None:
    spec = OpSpec(op, shapes, json.dumps(types), scalars=json.dumps(scalars))
    (one,) = measure([(spec, [change])], CPU, seconds=60).ops
    assert one.after_ns is None
    assert one.why.startswith(why)


@pytest.mark.slow
def test_on_another_device_nothing_is_measured() -> None:
    with pytest.raises(CannotMeasure, match=r"^The recording is from an NVIDIA H100, but this machine has no GPU\."):
        measure([(MM, ["fp32"])], Setting("NVIDIA H100"), seconds=60)


def test_on_another_processor_nothing_is_measured(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match=r"^The recording is from an Abacus 9000, but this is an "):
        measure(
            [(MM, ["fp32"])], Setting("", Flags(threads=1), "Abacus 9000"), 60, python=said(tmp_path, READY, "true")
        )


@pytest.mark.parametrize(
    ("last", "why"), [("sleep 600", "the time limit was reached"), ("kill -9 $$", "the benchmark process died")]
)
def test_what_was_measured_before_a_hang_or_a_death_is_kept(tmp_path: Path, last: str, why: str) -> None:
    progress = list[tuple[int, int]]()
    found = measure(
        *([(MM, ["fp32", "bf16"])], CPU, 3.0),
        progress=lambda done, total: progress.append((done, total)),
        python=said(tmp_path, READY, DONE, last),
    )
    assert found.ops == (MeasuredOp(MM, "fp32", 4e6, 1e6, 0.1, 5), MeasuredOp(MM, "bf16", why=why))
    assert (found.torch, found.count, progress) == ("2.9", 1, [(1, 2)])


def test_without_torch_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(CannotMeasure, match="cannot import torch"):
        measure([(MM, ["fp32"])], CPU, 60, python=said(tmp_path, "exit 1"))


def test_an_interrupt_keeps_what_was_measured(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    found = measure([(MM, ["fp32", "bf16"])], CPU, 60, stop, said(tmp_path, READY, DONE, "sleep 600"))
    assert [one.why for one in found.ops] == ["", "interrupted"]


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = Measurements("NVIDIA H100", "2.9", 3.0, (MeasuredOp(MM, "fp32", 4e6, 1e6, 0.1, 5),))
    path = tmp_path / "rank0.costs.json.gz"
    measuring.write(path, found)
    assert read_costs(path) == (found, [])
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_later_measurements_count() -> None:
    before = Measurements(
        "", "2.8", 3.0, (MeasuredOp(MM, "fp32", why="the time limit was reached"), MeasuredOp(MM, "bf16", 2, 1))
    )
    now = Measurements("", "2.9", 2.0, (MeasuredOp(MM, "fp32", 4, 1),))
    both = measuring.together(before, now)
    assert both == Measurements("", "2.9", 5.0, (MeasuredOp(MM, "bf16", 2, 1), MeasuredOp(MM, "fp32", 4, 1)))
