"""Traces without categories, and devices whose maker nobody names."""

import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import ranks
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import host_kind
from diagnose.trace.model import Rank
from tests.drawing import Drawing


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::add_", SpanKind.OP),
        ("conv2d", SpanKind.OP),
        ("ConvolutionBackward0", SpanKind.OP),
        ("autograd::engine::evaluate_function: MmBackward0", SpanKind.OP),
        ("ProfilerStep#3", SpanKind.ANNOTATION),
        ("Optimizer.step#SGD.step", SpanKind.ANNOTATION),
        ("cudaLaunchKernel", SpanKind.RUNTIME),
        ("hipMemcpyAsync", SpanKind.RUNTIME),
        ("cuLaunchKernelEx", SpanKind.DRIVER),
        ("train.py(12): main", SpanKind.PYTHON),
        ("My own part", None),
    ],
)
def test_names_tell_what_host_spans_are(name: str, kind: SpanKind | None) -> None:
    assert host_kind(name) is kind


def read(tmp_path: Path, events: list[dict[str, Any]]) -> Rank:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events))
    return ranks.read(path)


def test_the_profiler_before_kineto_wrote_a_list_without_categories(tmp_path: Path) -> None:
    """As torch/autograd/profiler.py: a row of functions of the CPU, and one of those of CUDA."""
    names = {"CPU functions": ["aten::mm", "Eval part"], "CUDA functions": ["sgemm", "Memcpy HtoD (Pinned -> Device)"]}
    events = [
        {"name": name, "ph": "X", "ts": 10 * k, "dur": 5, "tid": 0, "pid": row, "args": {}}
        for row, some in names.items()
        for k, name in enumerate(some)
    ]
    found = read(tmp_path, events)
    assert sorted(map(str, found.spans["kind"])) == ["annotation", "kernel", "memcpy", "op"]
    assert not any("no category" in note.what for note in found.integrity)
    assert found.provenance.process == ""


def test_an_event_that_nothing_explains_is_counted(tmp_path: Path) -> None:
    draw = Drawing().op("aten::mm", 0, 10).span("", "My own part", 10, 20)
    rank = read(tmp_path, draw.events)
    (note,) = (note.what for note in rank.integrity if "category" in note.what)
    assert note.startswith("1 events have no category")


@pytest.mark.parametrize(
    ("call", "category", "device", "maker"),
    [
        ("cudaLaunchKernel", "cuda_runtime", "", "cuda"),
        ("hipLaunchKernel", "cuda_runtime", "", "rocm"),
        ("Launch", "privateuse1_runtime", "", "unknown"),
        ("zeCommandListAppendLaunchKernel", "xpu_runtime", "Intel(R) Data Center GPU Max 1550", "unknown"),
        ("Launch", "privateuse1_runtime", "NVIDIA H100 80GB HBM3", "cuda"),
        ("Launch", "privateuse1_runtime", "AMD Instinct MI300X", "rocm"),
    ],
)
def test_the_maker_of_a_device_is_known_only_where_something_tells_it(
    call: str, category: str, device: str, maker: str
) -> None:
    draw = Drawing(deviceProperties=[{"id": 0, "name": device}] if device else [])
    draw.span(category, call, 0, 5, correlation=1).work("gemm", (10, 20), correlation=1)
    assert draw.rank().provenance.backend == maker
