"""Writes what happened on the ranks of a job as torch.profiler does (record_shapes=True), with Kineto of torch 2.4."""

import gzip
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from benchmarks.simulated_jobs import a100
from benchmarks.simulated_jobs.layout import Layout
from benchmarks.simulated_jobs.recording import AUTOGRAD, DeviceEvent, HostEvent, Recording
from benchmarks.simulated_jobs.training import MS, Training

Event: TypeAlias = dict[str, Any]

BASE_NS = 1_751_410_836_000_000_000
START_NS = 1_428_625_731_000_000  # Trace times of real recordings are some weeks after their base.
CBIDS = {
    "cudaLaunchKernel": 211,
    "cudaLaunchKernelExC": 430,
    "cudaMemcpyAsync": 41,
    "cudaStreamSynchronize": 131,
    "cudaEventRecord": 135,
    "cudaStreamWaitEvent": 147,
}


def write(training: Training, recordings: Sequence[Recording], folder: Path) -> None:
    """A packed file for each rank."""
    for recording in recordings:
        ahead_ns = round(training.clocks_ms.get(training.layout.host(recording.rank), 0.0) * MS)
        raw = msgspec.json.encode(_trace(recording, training.layout, BASE_NS + ahead_ns))
        (folder / f"rank{recording.rank}.pt.trace.json.gz").write_bytes(gzip.compress(raw, 1))


def _trace(recording: Recording, layout: Layout, base_ns: int) -> Event:
    mine = [group.told() for group in layout.groups if recording.rank in group.ranks]
    return {
        "schemaVersion": 1,
        "deviceProperties": [_properties(device) for device in range(min(recording.world, layout.gpus))],
        "cupti_version": 24,
        "cuda_runtime_version": 12040,
        "cuda_driver_version": 12040,
        "record_shapes": 1,
        "distributedInfo": {
            "backend": "nccl",
            "rank": recording.rank,
            "world_size": recording.world,
            "pg_count": len(mine),
            "pg_config": mine,
            "nccl_version": "2.27.5",
        },
        "host_name": f"node{layout.host(recording.rank)}",
        "traceEvents": list(_events(recording, recording.rank % layout.gpus)),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": base_ns,
    }


def _properties(device: int) -> Event:
    return {
        "id": device,
        "name": a100.NAME,
        "totalGlobalMem": a100.MEMORY_BYTES,
        "computeMajor": a100.CAPABILITY[0],
        "computeMinor": a100.CAPABILITY[1],
        "maxThreadsPerMultiprocessor": a100.THREADS_PER_MULTIPROCESSOR,
        "warpSize": 32,
        "numSms": a100.MULTIPROCESSORS,
    }


def _us(time_ns: int) -> float:
    return round((START_NS + time_ns) / 1e3, 3)


def _events(recording: Recording, device: int) -> Iterator[Event]:
    pid = 4_000 + recording.rank
    for number, one in enumerate(recording.host):
        yield _host_event(one, pid, number)
    launched = {one.correlation for one in recording.device}
    for one in recording.host:
        if one.correlation in launched and one.correlation:
            yield _flow("s", one.correlation, pid, _tid(one, pid), one.start_ns, "ac2g")
    for work in recording.device:
        yield _device_event(work, device)
        yield _flow("f", work.correlation, device, work.stream, work.start_ns, "ac2g")
    yield from _forward_backward(recording, pid)


def _tid(one: HostEvent, pid: int) -> int:
    return pid + 150 * (one.thread == AUTOGRAD)


def _host_event(one: HostEvent, pid: int, number: int) -> Event:
    tid = _tid(one, pid)
    args: dict[str, Any] = {}
    if one.op:
        args["External id"] = one.op
    if one.category == "cuda_runtime":
        args |= {"cbid": CBIDS[one.name], "correlation": one.correlation}
    else:
        args |= {"Record function id": 0, "Ev Idx": number}
    if one.sequence is not None:
        args |= {"Sequence number": one.sequence, "Fwd thread id": int(one.is_backward)}
    dur_us = round((one.end_ns - one.start_ns) / 1e3, 3)
    place = {"pid": pid, "tid": tid, "ts": _us(one.start_ns), "dur": dur_us}
    return {"ph": "X", "cat": one.category, "name": one.name, **place, "args": {**args, **one.args}}


def _device_event(one: DeviceEvent, device: int) -> Event:
    work = one.work
    args: dict[str, Any] = {"External id": one.op} if one.op else {}
    args |= {"device": device, "context": 1, "stream": one.stream, "correlation": one.correlation}
    if work.category == "kernel":
        threads = work.block[0] * work.block[1] * work.block[2]
        blocks = work.grid[0] * work.grid[1] * work.grid[2] / a100.MULTIPROCESSORS
        resident = min(blocks * threads / a100.THREADS_PER_MULTIPROCESSOR, 1.0)
        args |= {
            "queued": 0,
            "registers per thread": work.registers,
            "shared memory": 0,
            "blocks per SM": round(blocks, 6),
            "warps per SM": round(blocks * threads / 32, 6),
            "grid": list(work.grid),
            "block": list(work.block),
            "est. achieved occupancy %": int(100 * resident),
        }
    elif work.size is not None:
        args |= {"bytes": work.size, "memory bandwidth (GB/s)": work.size / max(one.end_ns - one.start_ns, 1)}
    place = {"pid": device, "tid": one.stream, "ts": _us(one.start_ns)}
    dur_us = round((one.end_ns - one.start_ns) / 1e3, 3)
    return {"ph": "X", "cat": work.category, "name": work.name, **place, "dur": dur_us, "args": {**args, **work.args}}


def _flow(phase: str, number: int, pid: int, tid: int, time_ns: int, category: str) -> Event:
    found = {"ph": phase, "id": number, "pid": pid, "tid": tid, "ts": _us(time_ns), "cat": category, "name": category}
    return {**found, "bp": "e"} if phase == "f" else found


def _forward_backward(recording: Recording, pid: int) -> Iterator[Event]:
    forward = dict[int, HostEvent]()
    number = 0
    for one in sorted(recording.host, key=lambda event: event.start_ns):
        if one.sequence is None:
            continue
        if not one.is_backward:
            forward.setdefault(one.sequence, one)
        elif one.name.startswith("autograd::engine") and one.sequence in forward:
            number += 1
            begin = forward.pop(one.sequence)
            yield _flow("s", number, pid, _tid(begin, pid), begin.start_ns, "fwdbwd")
            yield _flow("f", number, pid, _tid(one, pid), one.start_ns, "fwdbwd")
