"""The language and the workload of synthetic programs; what does not say is no inference, and is written in Python."""

from pathlib import Path

import pytest

from diagnose.capture.agent import threads
from diagnose.facts.core.base import Facts
from diagnose.facts.run.program import Language, Program, Workload, older_than, program
from diagnose.fixes.setting import Loop
from diagnose.source import ranks
from diagnose.synthetic.reading import facts_of
from diagnose.trace import frames
from tests.drawing import Drawing
from tests.source.nsight import Export, pid

GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_tn"


def forward(**args: int) -> Drawing:
    draw = Drawing()
    for at in (0, 100, 200):
        draw.step(at // 100, at, at + 100).op("aten::mm", at + 10, at + 20, **args)
        draw.launch(GEMM, (at + 12, at + 14), (at + 16, at + 60))
    return draw


def workload(draw: Drawing) -> Workload:
    return program(draw.facts()).workload


def test_a_model_that_runs_without_recording_for_gradients_is_inference() -> None:
    assert workload(forward()) == Workload.INFERENCE


def test_a_forward_pass_that_records_for_gradients_may_be_of_a_training() -> None:
    """As in a pipeline, whose backward passes come later."""
    assert workload(forward(**{"Sequence number": 7})) == Workload.UNKNOWN


@pytest.mark.parametrize(
    "name",
    ["autograd::engine::evaluate_function: MmBackward0", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.step"],
)
def test_a_backward_pass_or_an_optimizer_is_training(name: str) -> None:
    assert workload(forward().op(name, 270, 290)) == Workload.TRAINING


def test_a_stretch_of_time_may_be_a_frozen_model_s_in_a_training() -> None:
    draw = forward()
    draw.events = [event for event in draw.events if "ProfilerStep" not in event["name"]]
    assert workload(draw) == Workload.UNKNOWN
    assert workload(draw.launch("paged_attention_v2_kernel", (280, 281), (282, 290))) == Workload.INFERENCE


def test_kernels_of_gradients_in_a_graph_are_no_inference() -> None:
    draw = forward().launch("cudnn::bn_bw_1C11_kernel_new", (280, 281), (282, 290), api="cudaGraphLaunch")
    assert workload(draw.launch("flash_bwd_dq_dk_dv_loop", (291, 292), (293, 295))) == Workload.UNKNOWN


def test_a_graph_without_recorded_kernels_may_hold_any() -> None:
    assert workload(forward().call("cudaGraphLaunch", 280, 282)) == Workload.UNKNOWN


def test_without_a_model_or_ops_it_is_not_known() -> None:
    assert workload(Drawing().op("aten::add", 0, 5)) == Workload.UNKNOWN
    assert workload(Drawing().launch(GEMM, (0, 1), (2, 5))) == Workload.UNKNOWN


def language(draw: Drawing) -> Language:
    return program(draw.facts()).language


def named(draw: Drawing, process: str) -> Drawing:
    draw.events.append({"ph": "M", "name": "process_name", "pid": 100, "tid": 0, "args": {"name": process}})
    return draw


def test_torch_s_recorder_is_python_s_unless_the_process_has_another_name() -> None:
    plain = Drawing().op("aten::mm", 0, 10).launch(GEMM, (2, 3), (4, 9))
    assert language(plain) == Language.PYTHON
    assert language(named(plain, "/opt/python3.11")) == Language.PYTHON
    assert language(named(Drawing().op("aten::mm", 0, 10), "./serve")) == Language.CPP
    assert language(named(Drawing().op("aten::mm", 0, 10).frame("/a.py(3): f", 0, 10), "serve")) == Language.PYTHON
    assert language(named(forward(), "./serve")) == Language.PYTHON  # ProfilerStep# is torch.profiler's


@pytest.mark.parametrize(
    ("process", "kernel", "expected"),
    [
        ("./saxpy", "saxpy(float*)", Language.CUDA),
        ("", "saxpy(float*)", Language.CUDA),
        ("python3", "saxpy(float*)", Language.PYTHON),
        ("./serve", "void at::native::vectorized_elementwise_kernel<4>(int)", Language.CPP),
        ("", "void at::native::vectorized_elementwise_kernel<4>(int)", Language.PYTHON),
    ],
)
def test_nsight_systems_names_the_process(process: str, kernel: str, expected: Language, tmp_path: Path) -> None:
    export = Export().kernel(kernel, 20, 90, 1).call("cudaLaunchKernel_v7000", 10, 15, 1)
    if process:
        export.add("PROCESSES", globalPid=pid(), pid=100, name=process)
    rank = ranks.read(export.write(tmp_path / "x.sqlite"))
    assert program(Facts(rank)) == Program(expected, Workload.UNKNOWN)
    assert rank.provenance.python == (process == "python3" if process else None)


@pytest.mark.parametrize(("node", "older"), [("MmBackward", (1, 10)), ("MmBackward0", None), ("MineBackward", None)])
def test_nodes_without_a_number_are_of_old_versions(node: str, older: tuple[int, int] | None) -> None:
    assert older_than(facts_of(f"4 steps of 100\ncpu  {node} 0-10")) == older


@pytest.mark.parametrize(("module", "owner"), threads.OWNERS.items())
def test_a_module_that_the_recorder_knows_is_a_file_that_the_reader_knows(module: str, owner: str) -> None:
    of_package, of_module = f"{module.replace('.', '/')}/loop.py", f"{module.replace('.', '/')}.py"
    found = {frames.loop_owner(f"/lib/site-packages/{file}(7): run") for file in (of_package, of_module)}
    assert found - {None} == {owner}


def test_one_that_stands_on_another_comes_first_in_both() -> None:
    assert list(dict.fromkeys(threads.OWNERS.values())) == [owner for owner, _ in frames._OWNERS]
    assert set(threads.OWNERS.values()) < {owner.value for owner in Loop}
