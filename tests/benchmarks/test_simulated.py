"""The simulated GPU machine, with values derived by hand; its traces; and what is published of them."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from benchmarks import simulated, texts
from benchmarks.simulated import kineto, tables
from benchmarks.simulated import recorded as recorded_rows
from benchmarks.simulated.cases import SIZES, cases
from benchmarks.simulated.cases.case import changed
from benchmarks.simulated.cases.ranks import several
from benchmarks.simulated.cases.workloads import BF16, gpt, little, resnet
from benchmarks.simulated.gpus import A100
from benchmarks.simulated.judge import plain, profiled, true_ms
from benchmarks.simulated.machine import (
    CALL_NS,
    CALLS,
    COLLECTIVE_CALL_NS,
    FAST,
    LAUNCH_LATENCY_NS,
    QUEUE_LIMIT,
    SLOW,
    SYNC_NS,
    THREAD_SWITCH_NS,
    Costs,
    Recorder,
    Recording,
    busy_ns,
    run,
    step_ns,
)
from benchmarks.simulated.manifest import timed
from benchmarks.simulated.program import (
    COLLECTIVE_STREAM,
    COPY_STREAM,
    DEFAULT_STREAM,
    Backward,
    Call,
    Collective,
    Host,
    Launch,
    Loader,
    NextBatch,
    Node,
    Program,
    Range,
    RecordEvent,
    Synchronize,
    WaitEvent,
    Work,
)
from benchmarks.simulated.recorded import Row, Truth, leave, record
from benchmarks.simulated.tensor import Tensor
from diagnose.rulekit.page import built_in_rules, files

EXACT = Costs(Recorder(), host_jitter=0.0, device_jitter=0.0, gap_ns=0)
"""Times as they are written, so that they can be added up by hand."""
LAUNCH_NS = 4_000


def work(dur_ns: int) -> Work:
    return Work("kernel", "kernel", dur_ns)


def launch(dur_ns: int, stream: int = DEFAULT_STREAM, waits: bool = False) -> Launch:
    return Launch(work(dur_ns), stream, host_dur_ns=LAUNCH_NS, waits=waits)


def recorded(*nodes: Node, loader: Loader | None = None, steps: int = 1, costs: Costs = EXACT) -> Recording:
    return run([Program((nodes,) * steps, loader)], costs, range(steps))[0]


def spans(recording: Recording) -> list[tuple[int, int]]:
    return [(one.start_ns, one.end_ns) for one in recording.device]


def test_a_kernel_starts_when_it_is_launched_and_its_stream_is_free() -> None:
    first = LAUNCH_NS + LAUNCH_LATENCY_NS
    assert spans(recorded(launch(50_000), launch(10_000))) == [
        (first, first + 50_000),
        (first + 50_000, first + 60_000),
    ]


def test_streams_run_side_by_side() -> None:
    (_, _), (start, _) = spans(recorded(launch(50_000), launch(10_000, COPY_STREAM)))
    assert start == 2 * LAUNCH_NS + LAUNCH_LATENCY_NS


def test_a_stream_waits_for_an_event_of_another() -> None:
    nodes = [launch(50_000), RecordEvent("done"), WaitEvent("done", COPY_STREAM), launch(10_000, COPY_STREAM)]
    (_, end), (start, _) = spans(recorded(*nodes))
    assert start == end


def test_a_launch_blocks_while_the_queue_is_full() -> None:
    # Of kernels that take 10 ms each, one runs and QUEUE_LIMIT wait; the next launch returns when the second starts.
    recording = recorded(*[launch(10_000_000)] * (QUEUE_LIMIT + 2))
    calls = [one for one in recording.host if one.name == "cudaLaunchKernel"]
    assert [call.end_ns - call.start_ns for call in calls[:-1]] == [LAUNCH_NS] * (QUEUE_LIMIT + 1)
    assert calls[-1].end_ns == recording.device[1].start_ns + LAUNCH_NS


def test_a_copy_from_pageable_memory_holds_the_host_until_the_stream_is_drained() -> None:
    recording = recorded(launch(50_000), launch(10_000, waits=True))
    assert recording.host[1].end_ns == LAUNCH_NS + LAUNCH_LATENCY_NS + 60_000


def test_a_synchronisation_waits_for_its_stream_only() -> None:
    nodes = [launch(50_000), launch(900_000, COPY_STREAM), Synchronize(DEFAULT_STREAM)]
    assert recorded(*nodes).steps[0][1] == LAUNCH_NS + LAUNCH_LATENCY_NS + 50_000 + SYNC_NS
    all_of_them = recorded(*nodes[:2], Synchronize())
    assert all_of_them.steps[0][1] == 2 * LAUNCH_NS + LAUNCH_LATENCY_NS + 900_000 + SYNC_NS


def test_cuda_free_drains_the_device_and_cuda_malloc_does_not() -> None:
    assert recorded(launch(50_000), Call("cudaMalloc", 1_000)).steps[0][1] == LAUNCH_NS + 1_000
    drained = LAUNCH_NS + LAUNCH_LATENCY_NS + 50_000
    assert recorded(launch(50_000), Call("cudaFree", 1_000, drains=True)).steps[0][1] == drained + 1_000


def test_the_main_thread_waits_for_the_worker_whose_turn_it_is() -> None:
    # Two workers take 10 ms a batch, and the second starts 5 ms after the first: a batch every 5 ms.
    recording = recorded(NextBatch(0), loader=Loader(2, 10_000_000), steps=4)
    assert [end for _, end in recording.steps] == [10_000_000, 15_000_000, 20_000_000, 25_000_000]


def test_a_loader_that_is_ahead_costs_nothing() -> None:
    recording = recorded(Host(20_000_000), NextBatch(0), loader=Loader(2, 10_000_000), steps=4)
    assert [end for _, end in recording.steps] == [20_000_000, 40_000_000, 60_000_000, 80_000_000]


def test_a_collective_starts_when_the_last_rank_is_there() -> None:
    late, dur_ns = 300_000, 40_000
    programs = [Program(((Host(wait), Collective(work(dur_ns))),)) for wait in (0, late)]
    first, second = (one.device[0] for one in run(programs, EXACT, range(1)))
    arrived = COLLECTIVE_CALL_NS + LAUNCH_LATENCY_NS
    assert (first.start_ns, second.start_ns) == (arrived, late + arrived)
    assert first.end_ns == second.end_ns == late + arrived + dur_ns


def test_a_collective_waits_for_what_its_stream_waits_for() -> None:
    nodes = (launch(500_000), RecordEvent("ready"), WaitEvent("ready", COLLECTIVE_STREAM), Collective(work(1_000)))
    (_, end), (start, _) = spans(run([Program((nodes,))] * 2, EXACT, range(1))[0])
    assert start == end > LAUNCH_NS + 2 * CALL_NS + COLLECTIVE_CALL_NS


def test_ranks_must_enter_the_same_collectives() -> None:
    with pytest.raises(ValueError, match="does not enter"):
        run([Program(((Collective(work(1_000)),),)), Program(((Host(1),),))], EXACT, range(1))


# An op that launches and waits, in a step: two ranges and two calls.
ADDED = Range("aten::add", (launch(2_000), Synchronize()))


def under(recorder: Recorder | None, steps: int = 1) -> Recording:
    return recorded(ADDED, steps=steps, costs=replace(EXACT, recorder=recorder))


def test_recording_costs_host_time_for_every_op_and_call() -> None:
    alone_ns = under(Recorder()).steps[0][1]
    assert under(Recorder(op_ns=1_500)).steps[0][1] == alone_ns + 2 * 1_500
    # What the launch costs delays its kernel; what the wait costs passes while the kernel runs: here, all 800 ns.
    assert under(Recorder(call_ns=800)).steps[0][1] == alone_ns + 800
    slow = Recorder(op_ns=1_500, call_ns=800, clock=2.0)
    assert under(slow).steps[0][1] == alone_ns + 2 * (2 * 1_500 + 800)


def test_a_recorder_is_slower_while_it_warms_up() -> None:
    alone_ns = under(Recorder()).steps[0][1]
    recording = under(Recorder(op_ns=1_000, warm_up=(3.0, 1.5)), steps=3)
    assert [end - start - alone_ns for start, end in recording.steps] == [6_000, 3_000, 2_000]


def test_without_ops_calls_alone_are_noted_and_cost() -> None:
    recorder = Recorder(op_ns=1_500, call_ns=800)
    with_ops, without = under(recorder), under(replace(recorder, ops=False))
    calls = ["cudaLaunchKernel", "cudaDeviceSynchronize"]
    # The profiler itself waits for the device when it stops.
    assert [one.name for one in with_ops.host] == [*calls, "aten::add", "ProfilerStep#100", calls[1]]
    assert [(one.name, one.op) for one in without.host] == [(name, 0) for name in (*calls, calls[1])]
    assert without.steps[0][1] == with_ops.steps[0][1] - 2 * 1_500
    assert [one.op for one in without.device] == [0]


def test_what_costs_nothing_and_what_is_not_there_changes_no_time() -> None:
    parts = [under(recorder, steps=3) for recorder in (None, Recorder(), Recorder(ops=False))]
    assert [(one.steps, one.done_ns) for one in parts] == [(parts[0].steps, parts[0].done_ns)] * 3
    assert (parts[0].host, parts[0].device) == ((), ())
    assert tuple(replace(one, op=0) for one in parts[1].device) == parts[2].device


def test_phases_are_those_of_the_manifest() -> None:
    load = Range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", (Host(5_000),), "user_annotation")
    update = Range("Optimizer.step#SGD.step", (Host(7_000),), "user_annotation")
    recording = recorded(load, Host(1_000), Backward((Host(9_000),)), update)
    spent = {"loader": 5_000, "backward": 9_000 + 2 * THREAD_SWITCH_NS, "optimizer": 7_000, "save": 0}
    assert recording.phases_ns == (spent,)
    told = timed(recording)
    assert told["phases_ns"] == {phase: [ns] for phase, ns in spent.items() if ns}
    assert told["wall_ns"] == [sum(spent.values()) + 1_000]


def test_the_device_is_busy_while_any_stream_is() -> None:
    # Half of the second kernel, on a stream of its own, lies beside the first; the step is launched twice.
    recording = recorded(launch(LAUNCH_NS), launch(2 * LAUNCH_NS, COPY_STREAM), Synchronize(), steps=2)
    assert busy_ns(recording) == 3 * LAUNCH_NS


def test_parts_are_left_as_the_recorder_leaves_them(tmp_path: Path) -> None:
    training, recorder = little("small"), replace(SLOW, clock=2.0)
    made = record(training, 3, recorder)
    assert step_ns([made["ops"]]) > step_ns([made["device"]]) > step_ns([made["before"]])
    known = []
    for in_parts in (False, True):
        leave(made, training, recorder, tmp_path, in_parts)
        known += json.loads((tmp_path / "manifest.json").read_text())["ranks"]
    before, told = known
    assert {**told, **before} == told
    assert told.keys() - before.keys() == {"device", "device_timing", "unprofiled_after", "event_cost"}
    assert told["event_cost"] == {"op_ns": 4_000.0, "call_ns": 4_000.0}
    document = json.loads((tmp_path / told["device"]).read_text())
    kinds = {event["cat"] for event in document["traceEvents"] if event["ph"] == "X"}
    assert kinds == {*CALLS[:1], "kernel", "gpu_memcpy", "Trace"}
    bounds = told["device_timing"]["bounds_unix_ns"]
    calls = sorted(event["ts"] for event in document["traceEvents"] if event.get("cat") in CALLS)
    first, *_, last, at_the_stop = (document["baseTimeNanoseconds"] + round(ts * 1e3) for ts in calls)
    assert len(bounds) == 4
    assert bounds[0] < first < last < bounds[-1] == at_the_stop


def test_what_is_said_is_judged_by_the_truth() -> None:
    # 8 ms, of which 2 are left when the fault is fixed; 5 of 10 ms are said to be saved.
    truth = Truth("a case", 8.0, 2.0, ("a_rule",), busy=0.9)
    row = Row(truth, 2.0, True, 2.0, 1.2, 10.0, 5.0, 2, ("launch_bound", "a_rule"))
    assert (row.gain, row.left) == (0.5, 2.5)
    assert row.is_falsely_launch_bound
    by_host = replace(row, truth=replace(truth, busy=0.89), saved=None)
    assert (by_host.gain, by_host.left, by_host.is_falsely_launch_bound) == (None, None, False)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
def test_runs_are_the_same_every_time(size: str) -> None:
    case = next(one for one in cases() if one.family == "data loading")
    assert plain(case.training(size), 2) == plain(case.training(size), 2)


def test_a_matmul_takes_what_its_operations_take() -> None:
    # 2 x 4096^3 operations; 1,024 tiles on 108 multiprocessors fill 9.48 of 10 waves.
    expected = 2 * 4_096**3 / (312e3 * 0.87 * 0.75 * 1_024 / 1_080)
    assert A100.matmul_ns(4_096, 4_096, 4_096, 1, 2, "half") == pytest.approx(expected, rel=1e-3)
    assert A100.matmul_ns(8, 8, 8, 1, 2, "half") == 2_000


def trace_of(recordings: Sequence[Recording]) -> list[dict[str, object]]:
    document = kineto.trace(recordings[0], A100, 8)
    events = document["traceEvents"]
    assert isinstance(events, list)
    return events


def test_a_trace_has_what_torch_writes(tmp_path: Path) -> None:
    training = several(little("small", loading=replace(little("small").loading, own_stream=True)))
    recordings = profiled(training, 3, FAST)
    kineto.write(recordings[1], A100, tmp_path / "rank1.json.gz")
    events = trace_of(recordings)
    by_kind = {
        kind: [event for event in events if event.get("cat") == kind] for kind in {event.get("cat") for event in events}
    }
    steps = [one["name"] for one in by_kind["user_annotation"] if str(one["name"]).startswith("ProfilerStep#")]
    assert steps == ["ProfilerStep#103", "ProfilerStep#104", "ProfilerStep#105"]
    starts = {one["id"] for one in by_kind["ac2g"] if one["ph"] == "s"}
    correlations = {one["args"]["correlation"] for one in by_kind["kernel"]}  # type: ignore[index]
    assert correlations <= starts
    assert {"cpu_op", "cuda_runtime", "gpu_memcpy", "fwdbwd", "gpu_user_annotation"} <= by_kind.keys()
    assert any("ncclDevKernel_AllReduce" in str(one["name"]) for one in by_kind["kernel"])
    json.dumps(events)


def test_a_backward_op_has_the_sequence_number_of_its_forward_op() -> None:
    training = little("small")
    events = trace_of(profiled(training, 2, FAST))
    numbers: list[set[object]] = [set(), set()]
    for event in events:
        args = event.get("args")
        if isinstance(args, dict) and "Sequence number" in args:
            numbers[args["Fwd thread id"]].add(args["Sequence number"])
    assert numbers[0] == numbers[1] != set()


def test_fixing_a_fault_changes_only_what_the_fault_changes() -> None:
    for case in cases():
        healthy = case.build("small")
        for fault in case.faults:
            assert changed(healthy, fault.changes) != healthy, case.name
        assert case.training("small") == changed(healthy, {k: v for f in case.faults for k, v in f.changes.items()})


def test_tensor_cores_and_half_the_bytes_make_training_faster() -> None:
    assert true_ms(changed(resnet("small"), {"half": BF16}), 2) < true_ms(changed(resnet("small"), {"half": None}), 2)
    assert true_ms(gpt("small"), 2) < true_ms(changed(gpt("small"), {"model.fused_attention": False}), 2)


def test_a_tensor_knows_its_bytes_and_strides() -> None:
    pictures = Tensor((2, 3, 4, 5))
    assert (pictures.size, pictures.layout) == (480, (60, 20, 5, 1))
    assert pictures.channels_last().layout == (60, 1, 15, 3)


def test_cases_are_many_and_named_once() -> None:
    known = {path.stem for path in files(built_in_rules())}
    some = cases()
    assert len({one.name for one in some}) == len(some) >= 60
    assert sum(not one.faults for one in some) >= 12
    assert {rule for one in some for fault in one.faults for rule in fault.rules} <= known


def test_only_the_judge_knows_diagnose() -> None:
    folder = Path(simulated.__file__).parent
    for path in folder.rglob("*.py"):
        imported = set[str]()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {one.name for one in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        asked = {name for name in imported if name.split(".")[0] == "diagnose"}
        assert asked <= ({"diagnose"} if path.name == "judge.py" else set()), path.name


def test_the_published_tables_are_those_of_the_published_rows() -> None:
    rows = tables.published()
    assert {(row.case, row.size) for row in rows} == {(case.name, size) for case in cases() for size in SIZES}
    made = {(row.truth.case, row.distortion, row.in_parts) for row in recorded_rows.published()}
    assert made == set(product(recorded_rows.CHOSEN, recorded_rows.DISTORTIONS, recorded_rows.PARTS))
    blocks = ("simulated", "simulated-missed", "simulated-recorded", "simulated-recorded-parts")
    published = [text for text in texts.texts() if text.block in blocks]
    assert [table.block for table in published if not table.current] == []
    assert len(published) == len(blocks)
