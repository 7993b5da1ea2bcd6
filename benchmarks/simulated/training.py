"""One training: what its script decides, and the steps that follow from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from benchmarks.simulated import compiled
from benchmarks.simulated.eager import Torch
from benchmarks.simulated.gpus import A100, Gpu
from benchmarks.simulated.models import Model
from benchmarks.simulated.program import (
    COLLECTIVE_STREAM,
    COPY_STREAM,
    DEFAULT_STREAM,
    Call,
    Collective,
    GraphLaunch,
    Launch,
    Loader,
    NextBatch,
    Node,
    Program,
    RecordEvent,
    Synchronize,
    WaitEvent,
    Work,
)
from benchmarks.simulated.tensor import Tensor

MS = 1_000_000
US = 1_000
CUDA_MALLOC_NS, CUDA_FREE_NS = 300 * US, 500 * US
"""Medians of 250 to 370 us and 580 us in ResNet-50 traces, profiler included."""
FILE_BYTES_PER_NS = 1.0
"""torch.save to a local disk: about 1 GB/s."""
COLLATE_SHARE = 0.1
"""Of a batch's time in the loader that goes into collating, in ops that a trace shows."""


COLLECTIVES = {
    # The op, NCCL's annotation, its kernel, and buses' bytes for each byte between two ranks.
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum_f32", 2.0),
    "barrier": ("c10d::allreduce_", "nccl:all_reduce_barrier", "AllReduce_Sum_f32", 2.0),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather", 1.0),
}


@dataclass(frozen=True)
class Loading:
    """The DataLoader and what follows it."""

    workers: int = 8
    batch_ms: float = 20.0
    """CPU time that a batch costs."""
    pinned: bool = True
    non_blocking: bool = True
    own_stream: bool = False
    """The next batch is copied on a stream of its own while this one is computed."""
    scalars: int = 0
    """Further tensors of one element a batch, each copied alone."""


@dataclass(frozen=True)
class Syncing:
    """What makes the host wait for the device."""

    items: int = 0
    """`.item()` calls after the loss."""
    items_in_optimizer: int = 0
    """Of gradients' norms, one by one."""
    every: int = 1
    """Steps from one `.item()` to the next."""
    device: int = 0
    """torch.cuda.synchronize() calls a step, as timers have them."""
    copied_mb: float = 0.0
    """Of outputs that are copied to the CPU."""


@dataclass(frozen=True)
class Distributed:
    """DistributedDataParallel, or what stands in for it."""

    ranks: int = 2
    bucket_mb: float = 25.0
    by_hand: bool = False
    """`all_reduce` of each gradient after the backward pass, without overlap."""
    over_network: bool = False
    """Each rank is on a machine of its own."""
    half_gradients: bool = False
    micro_batches: int = 1
    no_sync: bool = True
    barriers: int = 0
    """A step."""
    metrics: int = 0
    """Scalars that are all-reduced a step, each alone."""
    gathered_mb: float = 0.0
    """Outputs all-gathered a step."""
    slow_rank: float = 1.0
    """How long the last rank's kernels take, as a multiple."""
    uneven: float = 0.0
    """By which share of its mean a rank's batch varies from step to step."""
    late_rank_ms: float = 0.0
    """Host time that rank 0 alone spends a step: logging, writing."""


@dataclass(frozen=True)
class Training:
    """A script's decisions."""

    model: Model
    gpu: Gpu = A100
    half: str | None = None
    tf32: bool = True
    optimizer: str = "AdamW"
    form: str = "fused"
    set_to_none: bool = True
    clip: bool = False
    scaler: bool = False
    """fp16 with a GradScaler, which reads found_inf."""
    loading: Loading = field(default_factory=Loading)
    syncing: Syncing = field(default_factory=Syncing)
    distributed: Distributed | None = None
    python_us: float = 0.0
    """Of hooks and helpers, for each module."""
    blocking: bool = False
    """CUDA_LAUNCH_BLOCKING=1."""
    step_python_ms: float = 0.0
    """Of Python between steps: metrics, logging, schedules."""
    freed: int = 0
    """Blocks that empty_cache() gives back each step, and that are allocated again."""
    saved_every: int = 0
    """Steps from one checkpoint to the next."""
    recompiled_every: int = 0
    compile_ms: float = 1_500.0
    compiled: bool = False
    """torch.compile(model)."""
    graph: bool = False
    """The whole step is a CUDA graph."""
    pause_every: int = 0
    pause_ms: float = 0.0
    """A pause of the host now and then: an evaluation, a slow disk."""

    memory_gb: float = 0.0
    """That the allocator has in use when a step begins; 0: memory is not recorded."""
    reserved_gb: float = 0.0
    """That it holds besides."""
    kept_gb: float = 0.0
    """That each step adds and does not free."""

    def memory(self, steps: int) -> tuple[tuple[int, int], ...]:
        """Bytes in use and held when each step begins; () if not recorded."""
        if not self.memory_gb:
            return ()
        used = [self.memory_gb + step * self.kept_gb for step in range(steps)]
        return tuple((round(one * 1e9), round((one + self.reserved_gb) * 1e9)) for one in used)

    def programs(self, steps: int) -> tuple[Program, ...]:
        """One for each rank."""
        ranks = self.distributed.ranks if self.distributed else 1
        return tuple(self._program(rank, ranks, steps) for rank in range(ranks))

    @property
    def gpus(self) -> int:
        """Of a machine."""
        return 1 if self.distributed and self.distributed.over_network else 8

    def _program(self, rank: int, ranks: int, steps: int) -> Program:
        known = dict[tuple[bool, ...], tuple[Node, ...]]()
        bodies = list[tuple[Node, ...]]()
        for number in range(steps):
            what = self._special(rank, number)
            key = (*what.values(), self._batch_of(rank, number) > self.model.batch)
            if key not in known:
                known[key] = _Step(self, rank, number).nodes(**what)
            bodies.append(known[key])
        loading = self.loading
        loader = Loader(loading.workers, round(loading.batch_ms * MS)) if loading.workers else None
        slower = self.distributed.slow_rank if self.distributed and rank == ranks - 1 else 1.0
        return Program(tuple(bodies), loader, slower, self.blocking)

    def _special(self, rank: int, number: int) -> dict[str, bool]:
        return {
            "logs": _due(number, self.syncing.every),
            "saves": rank == 0 and _due(number, self.saved_every),
            "recompiles": _due(number, self.recompiled_every),
            "pauses": _due(number, self.pause_every),
        }

    def _batch_of(self, rank: int, number: int) -> int:
        """Ranks take turns with large and small batches where work is uneven; their mean is that of even work."""
        uneven = self.distributed.uneven if self.distributed else 0.0
        turn = 1 if (rank + number) % 2 else -1
        return round(self.model.batch * (1.0 + uneven * turn))


def _due(number: int, every: int) -> bool:
    """Never if `every` is 0; otherwise in the last step of each period."""
    return every > 0 and number % every == every - 1


class _Step:
    """Records one step of a training on a rank."""

    def __init__(self, training: Training, rank: int, number: int) -> None:
        self.training, self.rank = training, rank
        self.model = replace(training.model, batch=training._batch_of(rank, number))  # type: ignore[type-var]
        self.torch = _Recorder(training)
        self._bucket = list[Tensor]()
        self._first = True
        self._sends = False

    def nodes(self, logs: bool, saves: bool, recompiles: bool, pauses: bool) -> tuple[Node, ...]:
        """All of it."""
        torch, training = self.torch, self.training
        if pauses:
            torch.host(training.pause_ms * MS)
        self._load()
        if training.graph:
            return self._as_graph()
        if recompiles:
            self._compile()
        self._passes()
        if training.scaler:
            self._unscale()
        if training.clip:
            torch.clip()
        for _ in range(training.syncing.items_in_optimizer if logs else 0):
            torch.item(Tensor(()))
        torch.optimizer(training.optimizer, training.form)
        torch.zero_grad(training.optimizer, training.set_to_none)
        self._after(logs)
        if saves:
            self._save()
        torch.host(training.step_python_ms * MS)
        return torch.taken()

    # The batch

    def _load(self) -> None:
        torch, loading = self.torch, self.training.loading
        inputs = self.model.inputs()
        size = sum(input_.size for input_ in inputs)
        if loading.workers:
            # Handing a batch over: unpickling its handle; pin_memory's thread has copied it already.
            with torch.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
                torch.add(NextBatch(120 * US))
        else:
            with torch.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                torch.host(loading.batch_ms * MS * (1.0 - COLLATE_SHARE))
                for input_ in inputs:
                    with torch.op("aten::stack", input_), torch.op("aten::cat", input_):
                        torch.host(loading.batch_ms * MS * COLLATE_SHARE * input_.size / size)
        stream = COPY_STREAM if loading.own_stream else DEFAULT_STREAM
        for input_ in (*inputs, *([Tensor(())] * loading.scalars)):
            torch.to_device(input_, loading.pinned, loading.non_blocking, stream)
        if loading.own_stream:
            # What was copied during the last step is used now: record_stream and wait_stream of a prefetcher.
            torch.add(WaitEvent("prefetched", DEFAULT_STREAM))
            torch.add(RecordEvent("prefetched", COPY_STREAM))

    # Forward and backward

    def _passes(self) -> None:
        torch, ddp = self.torch, self.training.distributed
        micro = ddp.micro_batches if ddp else 1
        parameters = list[Tensor]()
        for number in range(micro):
            self._sends = ddp is not None and not ddp.by_hand and (number == micro - 1 or not ddp.no_sync)
            torch.parameters = []
            torch.accumulates = not self.training.set_to_none or number > 0
            torch.on_gradient = self._reduce if self._sends else None
            self._pass()
            parameters = torch.parameters
            self._time(3)
        torch.parameters = parameters
        if ddp and ddp.by_hand:
            for parameter in parameters[::-1]:
                self._all_reduce([parameter])
                self._wait()

    def _pass(self) -> None:
        torch, before = self.torch, self.torch.taken()
        self._first = True
        self.model.forward(torch)
        forward = torch.taken()
        torch.backward_then(self._flush if self._sends else None)
        backward = torch.taken()
        if self.training.compiled:
            forward, backward = compiled.forward(forward), compiled.backward(backward)
        torch.extend(before)
        with self._forward():
            torch.extend(forward)
        self._time(2)
        torch.extend(backward)

    @contextmanager
    def _forward(self) -> Iterator[None]:
        if not self.training.distributed or self.training.distributed.by_hand:
            yield
            return
        with self.torch.range("DistributedDataParallel.forward"):
            self.torch.host(50 * US)
            yield

    def _reduce(self, parameter: Tensor) -> None:
        """What DDP's hook does when a gradient is there: copy it into its bucket, and send full buckets."""
        ddp = self.training.distributed
        if ddp is None:
            return
        with self.torch.op("torch::distributed::reducer::mul_out", parameter):
            self.torch.pointwise("mul", parameter, streams=2.0)
        self._bucket.append(parameter)
        limit = min(1.0, ddp.bucket_mb) if self._first else ddp.bucket_mb
        if sum(one.size for one in self._bucket) >= limit * 2**20:
            self._send()

    def _send(self) -> None:
        self._first = False
        self._all_reduce(self._bucket)
        self._bucket = []

    def _flush(self) -> None:
        if self._bucket:
            self._send()
        self._wait()

    # Collectives

    def _all_reduce(self, tensors: list[Tensor]) -> None:
        ddp = self.training.distributed
        halved = 2 if ddp and ddp.half_gradients and tensors[0].dtype == "float" else 1
        self._collective("allreduce", sum(tensor.size for tensor in tensors) // halved, tensors[0].dtype)

    def _collective(self, kind: str, size: int, dtype: str = "float") -> None:
        torch, ddp = self.torch, self.training.distributed
        if ddp is None:
            return
        op, note, kernel, factor = COLLECTIVES[kind]
        ranks = ddp.ranks
        gpu = self.training.gpu
        rate = gpu.network_gb_s if ddp.over_network else gpu.collective_gb_s
        # A latency floor of 20 us within a machine, of 60 us across; then the bytes that each link carries.
        dur_ns = round((60_000 if ddp.over_network else 20_000) + size * factor * (ranks - 1) / ranks / rate)
        words = {"float": ("Float", 4), "c10::BFloat16": ("BFloat16", 2), "c10::Half": ("Half", 2)}
        word, width = words.get(dtype, ("Float", 4))
        args = {
            "Collective name": kind,
            "dtype": word,
            "In msg nelems": size // width // (ranks if kind == "_allgather_base" else 1),
            "Out msg nelems": size // width,
            "Group size": ranks,
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(ranks))),
        }
        tensor = Tensor((size // width,), dtype)
        with torch.op(op, [tensor]), torch.range("record_param_comms", "cpu_op", args):
            torch.host(3 * US)
            torch.add(RecordEvent("ready", DEFAULT_STREAM))
            torch.add(WaitEvent("ready", COLLECTIVE_STREAM))
            with torch.range(note):
                torch.host(2 * US)
                name = f"ncclDevKernel_{kernel}_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
                work = Work("kernel", name, dur_ns, (24, 1, 1), (544, 1, 1), 96, args=args)
                torch.add(Collective(work))
                torch.add(RecordEvent("reduced", COLLECTIVE_STREAM))

    def _wait(self) -> None:
        self.torch.add(WaitEvent("reduced", DEFAULT_STREAM))

    # The rest

    def _time(self, number: int) -> None:
        if self.training.syncing.device >= number:
            self.torch.add(Synchronize())

    def _unscale(self) -> None:
        torch = self.torch
        with torch.op("aten::_amp_foreach_non_finite_check_and_unscale_", torch.parameters, own_ns=20_000):
            size = 2.0 * sum(parameter.size for parameter in torch.parameters)
            name = (
                "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
                "TensorListMetadata<1>, at::native::(anonymous namespace)::UnaryOpFunctor<float, 1, 1, 0> >"
            )
            torch.kernel(name, torch.gpu.kernel_ns(0, size), 320, 512)
        if self.training.form != "fused":
            torch.item(Tensor(()))

    def _after(self, logs: bool) -> None:
        torch, syncing = self.torch, self.training.syncing
        for _ in range(syncing.items if logs else 0):
            torch.item(Tensor(()))
        if syncing.copied_mb:
            torch.cpu(Tensor((self.model.batch, round(syncing.copied_mb * 2**18) // self.model.batch)))
        if self.training.distributed:
            self._meet(self.training.distributed)
        for _ in range(self.training.freed):
            torch.add(Call("cudaFree", CUDA_FREE_NS, drains=True))
        self._time(1)

    def _meet(self, ddp: Distributed) -> None:
        torch = self.torch
        for _ in range(ddp.metrics):
            self._collective("allreduce", 4)
            self._wait()
            torch.item(Tensor(()))
        if ddp.gathered_mb:
            self._collective("_allgather_base", round(ddp.gathered_mb * 2**20))
            self._wait()
        for _ in range(ddp.barriers):
            with torch.op("c10d::barrier", Tensor((1,))):
                self._collective("barrier", 4)
                self._wait()
                torch.add(Synchronize(DEFAULT_STREAM))
        if self.rank == 0:
            torch.host(ddp.late_rank_ms * MS)

    def _save(self) -> None:
        """`torch.save` of weights and optimizer state."""
        torch = self.torch
        with torch.range(
            "torch/serialization.py(810): save", "python_function", {"Python id": 1, "Python parent id": None}
        ):
            for parameter in torch.parameters:
                for _ in range(3):
                    torch.cpu(parameter)
                    torch.host(20 * US + parameter.size / FILE_BYTES_PER_NS)

    def _compile(self) -> None:
        torch, whole_ns = self.torch, self.training.compile_ms * MS
        frame = "entire_frame_compile (dynamo_timed)"
        with torch.range("_compile.compile_inner (dynamo_timed)"), torch.range(frame):
            torch.host(whole_ns * 0.3)
            with torch.range("backend_compile (dynamo_timed)"):
                torch.host(whole_ns * 0.7)

    def _as_graph(self) -> tuple[Node, ...]:
        """The kernels of the eager step in one launch."""
        before = self.torch.taken()
        self._passes()
        self.torch.optimizer(self.training.optimizer, self.training.form)
        works = tuple(_works(self.torch.taken()))
        self.torch.add(GraphLaunch(works))
        self.torch.host(self.training.step_python_ms * MS)
        return before + self.torch.taken()


class _Recorder(Torch):
    """Torch, with what a script adds to modules and to memory."""

    def __init__(self, training: Training) -> None:
        super().__init__(training.gpu, training.half, training.tf32)
        self._python_us = training.python_us
        self._to_allocate = training.freed

    def module(self) -> None:
        """Python of a module's call, and of hooks."""
        super().module()
        if self._python_us:
            self.host(self._python_us * US)

    def empty(self, tensor: Tensor) -> None:
        """Memory, from the driver if the cache was emptied."""
        if self._to_allocate:
            self._to_allocate -= 1
            self.malloc(CUDA_MALLOC_NS)
        else:
            super().empty(tensor)


def _works(nodes: tuple[Node, ...]) -> Iterator[Work]:
    for node in nodes:
        if isinstance(node, Launch):
            yield node.work
        elif isinstance(body := getattr(node, "body", None), tuple):
            yield from _works(body)
