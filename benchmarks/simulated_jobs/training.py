"""A job: what its script decides, and what each rank does in a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from benchmarks.simulated_jobs import a100, schedules
from benchmarks.simulated_jobs.layout import Layout
from benchmarks.simulated_jobs.machine import Costs, Rank, Sent, World
from benchmarks.simulated_jobs.model import Model, Tape, Taped, Torch, total
from benchmarks.simulated_jobs.moments import Moment
from benchmarks.simulated_jobs.recording import DEFAULT_STREAM, Recording, Work
from benchmarks.simulated_jobs.schedules import Action

MS = 1_000_000
COPY_IN_STREAM, GATHER_STREAM, SCATTER_STREAM, REPLICATE_STREAM = 20, 24, 28, 32
DDP_STREAM, SPLIT_STREAM, EXPERT_STREAM, PIPELINE_STREAM = 36, 40, 44, 48
"""Communication streams; transfers of single pairs of ranks have those behind the last."""
BUCKET_BYTES, FIRST_BUCKET_BYTES = 25 << 20, 1 << 20
SETTLING = 2  # Steps before those that are recorded.


@dataclass(frozen=True)
class Training:
    """A script's decisions, and what goes wrong with it."""

    layout: Layout
    model: Model = field(default_factory=Model)
    parallel: str = "ddp"  # What is done with gradients over the mesh's dp (or the job): ddp, fsdp, by_hand, or none.
    micro: int = 1  # Micro-batches of a step.
    schedule: str = ""  # gpipe, 1f1b or interleaved; the mesh's pp are its ranks.
    stages_each: int = 1
    blocks_of_stages: tuple[int, ...] = ()  # Even unless given.
    experts: bool = False  # The perceptrons are experts on the ranks of ep.
    hot_share: float = 0.0  # Of the tokens that go to the experts of one rank, beyond its even share.
    # FSDP
    unit: str = "block"  # What is wrapped: block, linear, or model.
    reshard: bool = True
    prefetch: bool = False  # Forward, as asked for explicitly.
    synchronises_blocks: bool = False  # Each block reads a value of the device.
    no_sync: bool = True
    sharded_optimizer: bool = False  # ZeRO-1 beside DDP.
    recompute: bool = False
    # What differs between ranks
    slow_devices: Mapping[int, float] = field(default_factory=dict)
    slow_hosts: Mapping[int, float] = field(default_factory=dict)
    loads_ms: Mapping[int, float] = field(default_factory=dict)
    pauses_ms: Mapping[int, float] = field(default_factory=dict)
    skew: float = 0.0  # By which share of the mean a rank's batch differs, in turn.
    # How it is recorded
    starts_late_ms: Mapping[int, float] = field(default_factory=dict)
    clocks_ms: Mapping[int, float] = field(default_factory=dict)  # Of hosts: by how much each is ahead.
    numbers_kept: bool = True
    coalesces_all: bool = False
    second_group: bool = False  # Another group of all ranks takes turns with the first, as of a second mesh.

    def run(self, recorded: int, costs: Costs) -> list[Recording]:
        """All ranks, some steps recorded."""
        steps = range(SETTLING, SETTLING + recorded)
        world = World(self.layout, costs, steps, self.numbers_kept, self.coalesces_all)
        ranks = [
            Rank(number, world, self.slow_devices.get(number, 1.0), self.slow_hosts.get(number, 1.0))
            for number in range(self.layout.world)
        ]
        for rank in ranks:
            program = _Program(self, rank)
            for number in range(steps.stop):
                with rank.step(number, self.starts_late_ms.get(rank.number, 0.0) * MS):
                    program.step(number)
        times = world.moments.times()
        return [rank.recording(times) for rank in ranks]

    def tokens(self, rank: int, number: int) -> int:
        """Of a micro-batch."""
        if not self.skew:
            return self.model.tokens
        size = self.layout.world
        more = (rank + number) % size == 0
        return round(self.model.tokens * (1.0 + self.skew if more else 1.0 - self.skew / (size - 1)))


class _Program:
    def __init__(self, training: Training, rank: Rank) -> None:
        self.training, self.rank = training, rank
        layout = training.layout
        self.dp = layout.group(rank.number, "dp_shard" if "dp_shard" in layout.mesh else "dp")
        self.has_dp = len(self.dp.ranks) > 1 and ("dp" in layout.mesh or "dp_shard" in layout.mesh)
        self.split = layout.mesh.get("tp", 1)
        self.torch = Torch(rank, training.model, self.split, self._reduce_split)
        self.shards = _Shards(self) if training.parallel == "fsdp" else None
        self.pipeline = _Pipeline(self) if training.schedule else None
        self.tokens = training.model.tokens
        self._bucket = 0
        self._first = True
        self._events = list[Moment]()

    @property
    def elements(self) -> int:
        """Parameters of this rank, before sharding."""
        model, layout = self.training.model, self.training.layout
        blocks = self.pipeline.own_blocks() if self.pipeline else model.blocks
        return (
            total(model.weights(), blocks) // self.split // (layout.mesh.get("ep", 1) if self.training.experts else 1)
        )

    def step(self, number: int) -> None:
        """All of it."""
        training, rank = self.training, self.rank
        self.tokens = training.tokens(rank.number, number)
        self._load()
        if self.pipeline:
            self.pipeline.step()
        else:
            for micro in range(training.micro):
                self._pass(micro == training.micro - 1 or not training.no_sync)
        self._finish()
        shared = len(self.dp.ranks) if training.parallel == "fsdp" or training.sharded_optimizer else 1
        self.torch.update(self.elements // shared)
        if training.sharded_optimizer:
            rank.wait(rank.collective("_allgather_base", self.dp, 2 * self.elements, "BFloat16", DDP_STREAM))
        rank.item()

    def _load(self) -> None:
        rank, training = self.rank, self.training
        with rank.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            rank.host(120_000 + training.loads_ms.get(rank.number, 0.0) * MS)
        with rank.op("aten::to"), rank.op("aten::_to_copy"), rank.op("aten::copy_", None, 4_500):
            size = 8 * self.tokens
            rank.launch(Work("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 2_000, size=size))
        if pause := training.pauses_ms.get(rank.number, 0.0):
            rank.host(pause * MS)

    # Without a pipeline

    def _pass(self, reduces: bool) -> None:
        torch, training = self.torch, self.training
        self._first = True
        torch.on_gradient = self._bucketed if reduces and training.parallel == "ddp" and self.has_dp else _nothing
        name = {"ddp": "DistributedDataParallel.forward", "fsdp": "FSDP::forward"}.get(training.parallel)
        if name == "DistributedDataParallel.forward":
            with self.rank.range(name):
                self.rank.host(50_000)
                self._forward(reduces)
        else:
            self._forward(reduces)
        torch.backward(torch.taken(), self._flush if reduces else None)

    def _forward(self, reduces: bool) -> None:
        torch, shards = self.torch, self.shards
        if shards:
            shards.forward(self.tokens, reduces)
        else:
            for _ in range(self.training.model.blocks):
                self.block()
        torch.head(self.tokens)

    def block(self) -> None:
        """One, forward."""
        torch, training = self.torch, self.training
        start = len(torch.tape)
        if training.experts:
            torch.attention(self.tokens)
            self._experts()
        else:
            torch.block(self.tokens)
        if training.recompute:
            tape, torch.tape = torch.tape[start:], torch.tape[:start]
            torch.tape += tape

            def again() -> None:
                kept, torch.tape = torch.tape, []
                sequence = self.rank.next_sequence()
                node = "CheckpointFunctionBackward"
                with (
                    self.rank.op(f"autograd::engine::evaluate_function: {node}", None, 2_000, sequence, True),
                    self.rank.op(node, None, 50_000, sequence, True),
                ):
                    torch.block(self.tokens)
                torch.tape = kept

            torch.hook(again)
        if training.synchronises_blocks:
            self.rank.item()

    def _experts(self) -> None:
        torch, rank, training = self.torch, self.rank, self.training
        group = training.layout.group(rank.number, "ep")
        members, hidden = len(group.ranks), training.model.hidden
        share = [(1.0 - training.hot_share) / members] * members
        share[members // 3] += training.hot_share
        there = [round(self.tokens * one) for one in share]
        mine = there[group.ranks.index(rank.number)]
        here = [mine] * members
        most = max(max(there) * members, self.tokens) * hidden

        def exchange(splits: tuple[list[int], list[int], int]) -> None:
            rank.wait(rank.collective("all_to_allv", group, 0, "BFloat16", EXPERT_STREAM, splits=splits))

        out = ([one * hidden for one in there], [one * hidden for one in here], most)
        back = (out[1], out[0], most)
        torch.norm(self.tokens)
        torch.linear(self.tokens, 8 * members, hidden)
        counts = ([1] * members, [1] * members, members)
        rank.wait(rank.collective("all_to_allv", group, 0, "Long", EXPERT_STREAM, splits=counts))
        rank.item("aten::_to_copy")
        exchange(out)
        torch.tape.append(_exchanged(rank, lambda: exchange(back)))
        received = mine * members
        torch.linear(received, 4 * hidden, hidden)
        torch.activation(received * 4 * hidden)
        torch.linear(received, hidden, 4 * hidden)
        exchange(back)
        torch.tape.append(_exchanged(rank, lambda: exchange(out)))

    # Gradients

    def _reduce_split(self, size: int) -> None:
        group = self.training.layout.group(self.rank.number, "tp")
        asks = "_c10d_functional::all_reduce"
        over = self.rank.collective("allreduce", group, size, "BFloat16", SPLIT_STREAM, asks)
        with self.rank.op("_c10d_functional::wait_tensor"):
            self.rank.wait(over)

    def _bucketed(self, elements: int) -> None:
        self._bucket += 4 * elements
        if self._bucket >= (FIRST_BUCKET_BYTES if self._first else BUCKET_BYTES):
            self._send()

    def _send(self) -> None:
        self._first = False
        self._events.append(self.rank.collective("allreduce", self.dp, self._bucket, "Float", DDP_STREAM))
        self._bucket = 0

    def _flush(self) -> None:
        if self._bucket:
            self._send()
        for event in self._events:
            self.rank.wait(event)
        self._events.clear()

    def _finish(self) -> None:
        training, rank = self.training, self.rank
        if self.shards:
            self.shards.finish()
        if training.parallel == "by_hand":
            for _ in range(training.model.blocks):
                for weight in training.model.weights()[::-1]:
                    rank.collective("allreduce", self.dp, 4 * weight, "Float", DEFAULT_STREAM)
        if training.second_group:
            other = replace(self.dp, name="17")
            rank.wait(rank.collective("allreduce", other, 4_096, "Float", REPLICATE_STREAM))


def _nothing(elements: int) -> None:
    del elements


def _exchanged(rank: Rank, play: Callable[[], None]) -> Taped:
    return Taped("_AllToAllSingleBackward", rank.next_sequence(), play)


class _Shards:
    """FSDP2: units whose parameters are gathered before they are used, and whose gradients are scattered."""

    def __init__(self, program: _Program) -> None:
        self._program, self._rank = program, program.rank
        model, unit = program.training.model, program.training.unit
        weights = model.weights()
        each = {"block": [sum(weights)], "linear": list(weights), "model": [sum(weights) * model.blocks]}[unit]
        blocks = 1 if unit == "model" else model.blocks
        self._units = [(number, part, size) for number in range(blocks) for part, size in enumerate(each)]
        self._gathered = dict[int, Moment]()
        self._whole = set[int]()
        self._copied_out: Moment | None = None
        self._scattered: Moment | None = None
        self._replicas = program.training.layout.group(program.rank.number, "dp_replicate")
        self._has_replicas = program.training.layout.mesh.get("dp_replicate", 1) > 1

    def forward(self, tokens: int, reduces: bool) -> None:
        """Of all units."""
        program, torch = self._program, self._program.torch
        unit = program.training.unit
        if unit == "model":
            self._before(0, reduces)
            for _ in range(program.training.model.blocks):
                program.block()
            self._after(0)
            return
        hidden = program.training.model.hidden
        parts: list[Callable[[], None]] = [program.block]
        if unit == "linear":
            parts = [
                lambda: self._first_part(tokens),
                lambda: torch.linear(tokens, hidden, hidden),
                lambda: self._third_part(tokens),
                lambda: torch.linear(tokens, hidden, 4 * hidden),
            ]
        for at in range(len(self._units)):
            self._before(at, reduces)
            parts[at % len(parts)]()
            self._after(at)

    def _first_part(self, tokens: int) -> None:
        torch, hidden = self._program.torch, self._program.training.model.hidden
        torch.norm(tokens)
        torch.linear(tokens, 3 * hidden, hidden)
        torch.attend(tokens)

    def _third_part(self, tokens: int) -> None:
        torch, hidden = self._program.torch, self._program.training.model.hidden
        torch.norm(tokens)
        torch.linear(tokens, 4 * hidden, hidden)
        torch.activation(tokens * 4 * hidden)

    def _name(self, at: int) -> str:
        number, part, _ = self._units[at]
        unit = self._program.training.unit
        return {"block": f"blocks.{number}", "linear": f"blocks.{number}.{part}", "model": ""}[unit]

    def _gather(self, at: int) -> None:
        if at in self._gathered or at in self._whole or not 0 <= at < len(self._units):
            return
        rank, size = self._rank, self._units[at][2]
        with rank.range(f"FSDP::all_gather ({self._name(at)})"):
            rank.host(60_000)
            if self._copied_out:
                rank.wait(self._copied_out, COPY_IN_STREAM)
            with rank.op("fsdp::all_gather_copy_in", None, 8_000):
                self._copy("all_gather_copy_in", 4 * size // len(self._program.dp.ranks), COPY_IN_STREAM)
            rank.wait(rank.record(COPY_IN_STREAM), GATHER_STREAM)
            self._gathered[at] = rank.collective(
                "_allgather_base", self._program.dp, 2 * size, "BFloat16", GATHER_STREAM, from_current=False
            )

    def _copy(self, name: str, size: int, stream: int = DEFAULT_STREAM) -> None:
        kernel = f"void at::native::(anonymous namespace)::{name}_kernel<c10::BFloat16>(int)"
        self._rank.launch(Work("kernel", kernel, round(a100.memory_ns(size)), (1_024, 1, 1), (256, 1, 1)), stream)

    def _use(self, at: int) -> None:
        if at in self._whole:
            return
        rank, size = self._rank, self._units[at][2]
        rank.wait(self._gathered.pop(at))
        copying = rank.op("fsdp::split_with_sizes_copy", None, 8_000)
        with rank.range(f"FSDP::all_gather_copy_out ({self._name(at)})"), copying:
            self._copy("split_with_sizes_copy", 4 * size)
        self._copied_out = rank.record()
        self._whole.add(at)

    def _before(self, at: int, reduces: bool) -> None:
        rank, torch, training = self._rank, self._program.torch, self._program.training
        with rank.range(f"FSDP::pre_forward ({self._name(at)})"):
            rank.host(80_000)
            self._gather(at)
            self._use(at)
            if training.prefetch:
                self._gather(at + 1)
        torch.hook(lambda: self._reduce(at) if reduces else self._reshard(at))

    def _after(self, at: int) -> None:
        rank, torch = self._rank, self._program.torch
        with rank.range(f"FSDP::post_forward ({self._name(at)})"):
            rank.host(20_000)
        if self._program.training.reshard and at < len(self._units) - 1:
            self._whole.discard(at)
        torch.hook(lambda: self._before_backward(at))

    def _before_backward(self, at: int) -> None:
        rank = self._rank
        with rank.range(f"FSDP::pre_backward ({self._name(at)})"):
            rank.host(50_000)
            self._gather(at)
            self._use(at)
            with rank.range(f"FSDP::backward_prefetch for {self._name(at - 1)}" if at else "FSDP::backward_prefetch"):
                self._gather(at - 1)

    def _reshard(self, at: int) -> None:
        with self._rank.range(f"FSDP::post_backward_reshard ({self._name(at)})"):
            self._rank.host(20_000)
        self._whole.discard(at)

    def _reduce(self, at: int) -> None:
        self._reshard(at)
        rank, program, size = self._rank, self._program, self._units[at][2]
        with rank.range(f"FSDP::post_backward_reduce ({self._name(at)})"):
            rank.host(60_000)
            if self._scattered:
                rank.wait(self._scattered)
            rank.wait(rank.record(), SCATTER_STREAM)
            with rank.op("fsdp::chunk_cat", None, 8_000):
                self._copy("chunk_cat", 6 * size, SCATTER_STREAM)
            over = rank.collective(
                "_reduce_scatter_base", program.dp, 4 * size, "Float", SCATTER_STREAM, from_current=False
            )
            if self._has_replicas:
                rank.wait(over, REPLICATE_STREAM)
                part = 4 * size // len(program.dp.ranks)
                over = rank.collective("allreduce", self._replicas, part, "Float", REPLICATE_STREAM, from_current=False)
            self._scattered = over

    def finish(self) -> None:
        """The optimizer needs all gradients."""
        if self._scattered:
            with self._rank.range("FSDP::root_post_backward_callback"):
                self._rank.wait(self._scattered)
        self._scattered, self._whole = None, set()


class _Pipeline:
    """Stages on the ranks of pp that hand on activations and their gradients."""

    def __init__(self, program: _Program) -> None:
        training = program.training
        self._program, self._rank, self._training = program, program.rank, training
        self._group = training.layout.group(program.rank.number, "pp")
        self._place = self._group.ranks.index(program.rank.number)
        self._ranks = len(self._group.ranks)
        self._stages = self._ranks * training.stages_each
        even = training.model.blocks // self._stages
        self._blocks = training.blocks_of_stages or (even,) * self._stages
        self._tapes = dict[tuple[int, int], Tape]()
        self._received = dict[tuple[int, str, int], Moment]()
        self._sent = list[Moment]()

    def own_blocks(self) -> int:
        """Of this rank's stages."""
        return sum(self._blocks[self._place :: self._ranks])

    def step(self) -> None:
        """By its schedule."""
        {"gpipe": self._gpipe, "1f1b": self._alternating, "interleaved": self._interleaved}[self._training.schedule]()
        for event in self._sent:
            self._rank.wait(event)
        self._sent.clear()

    # Passes

    def _forward(self, stage: int, micro: int) -> None:
        torch = self._program.torch
        for _ in range(self._blocks[stage]):
            self._program.block()
        if stage == self._stages - 1:
            torch.head(self._program.tokens)
        self._tapes[stage, micro] = torch.taken()

    def _backward(self, stage: int, micro: int) -> None:
        program = self._program
        last = micro == self._training.micro - 1 and program.has_dp
        program.torch.on_gradient = program._bucketed if last else _nothing
        program.torch.backward(self._tapes.pop((stage, micro)))
        if last and stage == self._place:
            program._flush()

    def _sends(self, stage: int, toward: int, sends: bool) -> list[Sent]:
        """What goes to, or comes from, a neighbour; nothing beyond the first and last stage."""
        if not 0 <= stage + toward < self._stages:
            return []
        size = 2 * self._training.model.tokens * self._training.model.hidden
        return [Sent(sends, self._group.ranks[(stage + toward) % self._ranks], self._group, size)]

    def _batch(self, some: Sequence[Sent], waits: bool) -> None:
        over = self._rank.batch(some, PIPELINE_STREAM)
        if over and waits:
            self._rank.wait(over)
        elif over:
            self._sent.append(over)

    def _gpipe(self) -> None:
        stage, rank = self._place, self._rank
        for kind, toward in (("Forward", 1), ("Backward", -1)):
            for micro in range(self._training.micro):
                with rank.range(f"{kind} {micro}"):
                    self._batch(self._sends(stage, -toward, False), True)
                    (self._forward if toward > 0 else self._backward)(stage, micro)
                    self._batch(self._sends(stage, toward, True), False)

    def _alternating(self) -> None:
        """Schedule1F1B: what is sent goes in one batch with what is received next."""
        stage, count = self._place, self._training.micro
        ahead = min(self._stages - stage, count)
        out = list[Sent]()
        for micro in range(ahead):
            self._batch(self._sends(stage, -1, False), True)
            self._forward(stage, micro)
            out = self._sends(stage, 1, True)
            if micro < ahead - 1:
                self._batch(out, False)
        for micro in range(count):
            if micro + ahead <= count:
                self._batch([*out, *self._sends(stage, 1, False)], True)
            else:
                self._batch(self._sends(stage, 1, False), True)
            self._backward(stage, micro)
            back = self._sends(stage, -1, True)
            if micro + ahead < count:
                self._batch([*back, *self._sends(stage, -1, False)], True)
                self._forward(stage, micro + ahead)
                out = self._sends(stage, 1, True)
            else:
                self._batch(back, False)

    def _interleaved(self) -> None:
        each, count = self._training.stages_each, self._training.micro
        orders = [schedules.interleaved(rank, self._ranks, each, count) for rank in range(self._ranks)]
        for action in schedules.with_transfers(orders, self._stages)[self._place]:
            with self._rank.range(f"PP:{action}"):
                self._do(action)

    def _do(self, action: Action) -> None:
        stage, kind, micro = action.stage, action.kind, action.micro
        toward = 1 if kind in ("SEND_F", "RECV_B") else -1
        if kind.startswith("SEND"):
            self._batch(self._sends(stage, toward, True), False)
        elif kind.startswith("RECV"):
            over = self._rank.batch(self._sends(stage, toward, False), PIPELINE_STREAM)
            if over:
                self._received[stage, kind[-1], micro] = over
        else:
            if event := self._received.pop((stage, kind, micro), None):
                self._rank.wait(event)
            (self._forward if kind == "F" else self._backward)(stage, micro)
