"""What torch.profiler would have recorded: events as Kineto writes them, from names, times and threads."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import count
from typing import Any

from msgspec import Struct


def _table(text: str) -> dict[str, str]:
    """Entries NAME VALUE, on lines of their own or separated by `|`."""
    return dict(entry.split(None, 1) for entry in re.split(r" *[|\n] *", text.strip()))


_PROPERTIES = ("totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerMultiprocessor", "warpSize", "numSms")
# As Kineto wrote them in public traces; A100 and T4 as deviceQuery did. GTX 1080 Ti: trace.hardware has no peaks of it.
DEVICES = {
    "NVIDIA H100 80GB HBM3": (85_018_279_936, 9, 0, 2048, 32, 132),
    "NVIDIA A100-SXM4-80GB": (85_198_045_184, 8, 0, 2048, 32, 108),
    "Tesla V100-SXM2-32GB": (34_079_637_504, 7, 0, 2048, 32, 80),
    "Tesla T4": (15_835_660_288, 7, 5, 1024, 32, 40),
    "NVIDIA GeForce GTX 1080 Ti": (11_721_375_744, 6, 1, 2048, 32, 28),
    "AMD Instinct MI300X": (206_141_652_992, 9, 4, 2048, 64, 304),
}
HOST_NAMES = _table("""
    load enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    next enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    optimizer Optimizer.step#AdamW.step | zero_grad Optimizer.zero_grad#AdamW.zero_grad
    compile _compile.compile_inner (dynamo_timed) | gc Python GC | save torch/serialization.py(944): save
    sync cudaStreamSynchronize | device_sync cudaDeviceSynchronize | event_sync cudaEventSynchronize
    record cudaEventRecord | wait cudaStreamWaitEvent | malloc cudaMalloc | free cudaFree
""")
_ATEN, _ANON = "void at::native::", "void at::native::(anonymous namespace)::"
# Real names, but that arguments are cut short.
KERNELS = _table(f"""
    sgemm ampere_sgemm_128x64_nn | bf16_gemm nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN
    fp16_gemm ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn
    tf32_gemm void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4>(Params)
    conv cudnn_ampere_scudnn_128x64_relu_xregs_large_nn_v1
    nchw2nhwc void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, (cudnnKernelDataType_t)2>(float*)
    flash void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, cutlass::bfloat16_t> >()
    softmax void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, false, false>(float*)
    layernorm {_ANON}vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*)
    pointwise {_ATEN}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >(int)
    cast {_ATEN}vectorized_elementwise_kernel<4, at::native::bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)>(int)
    fill {_ATEN}vectorized_elementwise_kernel<4, at::native::FillFunctor<float> >(int)
    reduce {_ATEN}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float> > >(int)
    cat {_ANON}CatArrayBatchedCopy_aligned16_contig<at::native::OpaqueType<4u>, unsigned int, 1, 128, 1>(int)
    adam {_ANON}multi_tensor_apply_kernel<FusedOptimizerTensorListMetadata<4>, FusedAdamMathFunctor<float> >(int)
    foreach {_ANON}multi_tensor_apply_kernel<TensorListMetadata<1>, BinaryOpScalarFunctor<float> >(int)
    nccl ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args) | allreduce ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args)
    allgather ncclDevKernel_AllGather_RING_LL(Args) | reduce_scatter ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(Args)
""")
COPIES = _table("""
    h2d Memcpy HtoD ({} -> Device) | d2d Memcpy DtoD (Device -> Device) | memset Memset (Device)
    d2h Memcpy DtoH (Device -> {}) | p2p Memcpy PtoP (Device -> Device)
""")
# Named like the columns of trace.schema that they fill, but for `types`.
KEYS = _table("""
    shapes Input Dims | types Input type | strides Input Strides | scalars Concrete Inputs
    stack Call stack | sequence Sequence number
    occupancy est. achieved occupancy % | operation Collective name | group_ranks Process Group Ranks
    group Process Group Name | group_description Process Group Description | to Dst Rank | from Src Rank | seq Seq
    group_size Group size | in_elements In msg nelems | out_elements Out msg nelems
""")
_SYNCS = _table("""
    cudaStreamSynchronize Stream Sync | cudaEventSynchronize Event Sync
    cudaDeviceSynchronize Context Sync | cudaStreamWaitEvent Stream Wait Event
""")
# The first that matches, else user_annotation. Of equal spans the outer is the one whose category comes first.
_CATEGORIES = {
    "python_function": r".+\(\d+\): |<built-in |nn\.Module: |Python GC\Z",
    "user_annotation": r"FSDP::",
    "cpu_op": r".*::|.*Backward\d+\Z|.* \(dynamo_timed\)\Z|record_param_comms\Z|triton_",
    "cuda_runtime": r"(cuda|hip)[A-Z]",
    "cuda_driver": r"cu[A-Z]",
    "overhead": r"(Lazy Function|Runtime Triggered Module) Loading\Z|(Activity|Command) Buffer |Buffer Flush\Z",
}
_CALLS = ("cuda_runtime", "cuda_driver")
_CAN_HOLD = ("python_function", "user_annotation", "cpu_op", "overhead")
_BASE_NS = 1_767_225_600_000_000_000
_PID = 100  # of the process, and of its thread `main`
_THREADS = 256  # in a block


class _Event(Struct):
    """An event of Kineto's; times in ns. `place` is the line that draws it."""

    place: str
    category: str
    name: str
    pid: int
    tid: int
    start: int
    end: int
    args: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.name} {self.start / 1e6:.12g}-{self.end / 1e6:.12g}"

    @property
    def on_host(self) -> bool:
        """Whether it lies on a host thread."""
        return self.category in _CATEGORIES

    def json(self) -> dict[str, Any]:
        """As Kineto writes it, times in us."""
        where = {"ph": "X", "cat": self.category, "name": self.name, "pid": self.pid, "tid": self.tid}
        return {**where, "ts": self.start / 1000, "dur": (self.end - self.start) / 1000, "args": self.args}


class Recorder:
    """The profiler, with what it has seen so far. All times are in ns."""

    def __init__(self) -> None:
        self.place = ""  # The line of the drawing that is being read, for errors.
        self.device = next(iter(DEVICES))
        self.rank: tuple[int, int] | None = None  # This rank, and of how many.
        self.machine: tuple[str, int] | None = None  # Its name, and how many devices it has.
        self.sync_events = False
        self._events: list[_Event] = []
        self._threads = {"main": _PID}
        self._correlations = count(1)
        self._memory: list[dict[str, Any]] = []

    @property
    def _amd(self) -> bool:
        return self.device.startswith("AMD")

    def span(self, name: str, thread: str, start: int, end: int, args: dict[str, Any]) -> int:
        """Record a span of a host thread. Returns a new correlation id, which is written if the span is a call."""
        name = HOST_NAMES.get(name, name)
        name = re.sub("^cuda(?=[A-Z])", "hip", name) if self._amd else name
        category = next((category for category, form in _CATEGORIES.items() if re.match(form, name)), "user_annotation")
        tid = self._threads.setdefault(thread, _PID + len(self._threads))
        correlation = next(self._correlations)
        ids = {"correlation": correlation} if category in _CALLS else {}
        self._events.append(_Event(self.place, category, name, _PID, tid, start, end, ids | args))
        return correlation

    def memory(self, time: int, allocated_bytes: int, reserved_bytes: int) -> None:
        """Record how much the allocator has in use on device 0, and how much it holds."""
        totals = {"Total Allocated": allocated_bytes, "Total Reserved": reserved_bytes}
        args = {"Device Type": 1, "Device Id": 0, "Addr": 0, "Bytes": 0, **totals}
        place = {"pid": _PID, "tid": _PID, "ts": time / 1000}
        self._memory.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", **place, "args": args}
        )

    def work(
        self, name: str, track: str, start: int, end: int, call: int, said: dict[str, str], args: dict[str, Any]
    ) -> None:
        """Record device work. `call`: correlation of its launch, 0 if not recorded; `said`: its words in a drawing."""
        found = re.fullmatch(r"(?:(\d+):)?(\d+)", track or ("0" if self._amd else "7"))
        if not found:
            raise ValueError(f"{track} is no stream")
        device, stream = int(found[1] or 0), int(found[2])
        if name in COPIES:
            category = "gpu_memset" if name == "memset" else "gpu_memcpy"
            name = COPIES[name].format("Host" if self._amd else said.get("memory", "pageable").title())
            size = {"bytes": int(said["size"]) * 1000 ** " KMG".index(said.get("unit", " "))} if "size" in said else {}
        else:
            category, name, size = "kernel", KERNELS.get(name, name), self._kernel_size(said)
        ids = {"device": device, "context": 1, "stream": stream, "correlation": call or next(self._correlations)}
        self._events.append(_Event(self.place, category, name, device, stream, start, end, ids | size | args))

    def _kernel_size(self, said: dict[str, str]) -> dict[str, Any]:
        """How large a kernel is; ROCm records less. Occupancy: kineto CuptiActivity.h, without other limits."""
        *_, most_threads, _, multiprocessors = DEVICES[self.device]
        blocks = int(said.get("blocks", 16 * multiprocessors))
        size: dict[str, Any] = {"grid": [blocks, 1, 1], "block": [_THREADS, 1, 1]}
        if not self._amd:
            percent = min(100, 100 * blocks * _THREADS // (multiprocessors * most_threads))
            size |= {"registers per thread": 32, "shared memory": 0, "est. achieved occupancy %": percent}
        return size | ({"graph id": 1} if "graph" in said else {})

    def document(self) -> dict[str, Any]:
        """What Kineto writes of it all. Raises ValueError for what cannot be."""
        if not self._events:
            raise ValueError("the drawing is empty")
        events = self._in_order()
        events += _syncs(events) if self.sync_events else []
        properties = dict(zip(_PROPERTIES, DEVICES[self.device], strict=True))
        devices = 1 + max((event.pid for event in events if not event.on_host), default=0)
        header: dict[str, Any] = {"hip_runtime_version": 60_443_483} if self._amd else {"cuda_runtime_version": 12_080}
        if self.rank:
            header["distributedInfo"] = {"backend": "nccl", "rank": self.rank[0], "world_size": self.rank[1]}
        if self.machine:
            header["host_name"], devices = self.machine
        threads = [
            {"ph": "M", "name": "thread_name", "pid": _PID, "tid": tid, "args": {"name": f"thread {tid} ({name})"}}
            for name, tid in self._threads.items()
        ]
        return {
            "schemaVersion": 1,
            "deviceProperties": [{"id": k, "name": self.device, **properties} for k in range(devices)],
            **header,
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": _BASE_NS,
            "traceEvents": [event.json() for event in events] + self._memory + threads,
        }

    def _in_order(self) -> list[_Event]:
        """All events in order of time, with ids: calls, and the work they launch, have that of the op that was open."""
        ids, calls, ordered = count(1), dict[int, _Event](), []
        for event, around in _nested(self._events):
            ordered.append(event)
            if event.category in _CALLS:
                calls[event.args["correlation"]] = event
                op = next((one for one in reversed(around) if one.category == "cpu_op"), None)
                event.args |= {"External id": op.args["External id"]} if op else {}
            elif event.on_host:
                event.args["Python id" if event.category == "python_function" else "External id"] = next(ids)
        last: dict[tuple[int, int], int] = {}
        for event in ordered:
            call = calls.get(event.args["correlation"]) if not event.on_host else None
            if call:
                event.args |= {key: value for key, value in call.args.items() if key == "External id"}
                if call.start < last.get((event.pid, event.tid), 0):
                    raise ValueError(f"{event.place}: {event} runs after work of its stream that was launched later")
                last[event.pid, event.tid] = call.start
        return ordered


def _syncs(events: list[_Event]) -> list[_Event]:
    """The cuda_sync events of the calls that have some; an event is awaited as it was recorded last before."""
    syncs, recorded = [], {"wait_on_stream": -1, "wait_on_cuda_event_record_corr_id": -1}
    for call in events:
        stream = call.args.get("stream", 7)
        if call.name == "cudaEventRecord":
            recorded = {"wait_on_stream": stream, "wait_on_cuda_event_record_corr_id": call.args["correlation"]}
        elif kind := _SYNCS.get(call.name):
            stream = stream if kind.startswith("Stream") else -1
            args: dict[str, Any] = {key: call.args[key] for key in ("External id", "correlation") if key in call.args}
            args |= {"cuda_sync_kind": kind, "device": 0, "context": 1, "stream": stream}
            args |= recorded if "Event" in kind else {}
            syncs.append(_Event(call.place, "cuda_sync", kind, 0, stream, call.start, call.end, args))
    return syncs


def launch_of(name: str) -> str:
    """The call that launches work of this name."""
    api = "MemsetAsync" if name == "memset" else "MemcpyAsync" if name in COPIES else "LaunchKernel"
    return f"cuda{api}"


def _nested(events: list[_Event]) -> Iterator[tuple[_Event, list[_Event]]]:
    """Events in order of time, each with those around it on its thread, outermost first. Raises ValueError."""
    rank = {category: k for k, category in enumerate(_CATEGORIES)}
    open_on: dict[tuple[int, int], list[_Event]] = defaultdict(list)
    for event in sorted(events, key=lambda one: (one.start, -one.end, rank.get(one.category, 0))):
        around = open_on[event.pid, event.tid]
        while around and around[-1].end <= event.start:
            around.pop()
        if around and (around[-1].end < event.end or around[-1].category not in _CAN_HOLD):
            raise ValueError(f"{event.place}: {event} overlaps {around[-1]}, of {around[-1].place}")
        yield event, around
        around.append(event)
