"""Jobs of several ranks over gloo, each with options that plant a fault:

    torchrun --nproc-per-node 4 -m sample_traces.jobs.run data_parallel slow=2

benchmarks/jobs/cases.tsv has the options of each planted fault, and those that fix it. Times are in ms.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.pipelining as pipelining
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.nn.functional import all_to_all_single
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from sample_traces import harness
from sample_traces.harness import Run
from sample_traces.jobs.parts import MS, Deep, Layer, Slow, SlowSGD, SplitLayer, compute, send

Step = Callable[[], None]


def _layers(count: int, width: int, ms: float) -> nn.Sequential:
    return nn.Sequential(*(Layer(width, ms) for _ in range(count)))


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-3)


def _last(run: Run, factor: float) -> float:
    """The factor on the last rank, 1 on the others."""
    return factor if run.rank == run.ranks - 1 else 1.0


def data_parallel(
    run: Run,
    ms: float = 4,
    layers: int = 4,
    slow: float = 1,
    samples: tuple[int, ...] = (),
    in_turn: float = 1,
    load: float = 0,
    slow_load: float = 1,
    logging: float = 0,
    saving: float = 0,
    garbage: int = 0,
) -> Step:
    """DDP. The last rank's device is `slow` times as slow; ranks get `samples` of 8 each; in turn, one gets more.

    The last rank loads `slow_load` times as long as the others' `load`. Rank 0 logs, saves, or looks for garbage.
    """
    width, rows = 64, samples[run.rank] if samples else 8
    model = DistributedDataParallel(_layers(layers, width, ms * _last(run, slow) * rows / 8))
    optimizer = _sgd(model)
    loader = _loader(width, load * _last(run, slow_load)) if load else None
    if garbage:
        gc.freeze()  # What was imported is not looked at.
    heap = [[number] for number in range(garbage)]
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        if in_turn > 1:
            for layer in model.module:
                layer.ms = ms * (in_turn if number % run.ranks == run.rank else 1.0)
        inputs = next(loader) if loader else torch.randn(rows, width)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if run.rank == 0:
            if logging:
                write_log(logging)
            if saving:
                save(model, saving)
            if heap:
                gc.collect()

    return step


def _loader(width: int, ms: float) -> Iterator[Tensor]:
    return iter(DataLoader(Slow(width, ms / 8), batch_size=8))


def write_log(ms: float) -> None:
    """To a server that answers slowly."""
    time.sleep(ms * MS)


def save(model: nn.Module, ms: float) -> None:
    """To a disk that is slow."""
    with tempfile.TemporaryDirectory() as folder, Path(folder, "model.pt").open("wb") as file:
        write = file.write

        class Disk:
            def __getattr__(self, name: str) -> Any:
                return getattr(file, name)

            def write(self, data: bytes) -> int:
                time.sleep(ms * MS / 20)
                return write(data)

        torch.save(model.state_dict(), Disk())


def accumulation(run: Run, batches: int = 4, ms: float = 2, no_sync: bool = False, width: int = 1024) -> Step:
    """DDP with gradients of several micro-batches."""
    model = DistributedDataParallel(_layers(4, width, ms))
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        for number in range(batches):
            with model.no_sync() if no_sync and number < batches - 1 else contextlib.nullcontext():
                (model(torch.randn(8, width)).square().mean() / batches).backward()
        optimizer.step()

    return step


def slow_wire(run: Run, ms_per_mb: float = 20, half: bool = False, width: int = 256) -> Step:
    """DDP whose gradients go over a wire that takes so long for a MB."""
    model = DistributedDataParallel(_layers(4, width, 4))
    optimizer = _sgd(model)

    def reduced(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        gradient = bucket.buffer()
        sent = gradient.bfloat16() if half else gradient
        sent = send(sent, ms_per_mb * sent.nbytes / 1e6).float() / run.ranks
        return dist.all_reduce(sent, async_op=True).get_future().then(lambda done: done.value()[0])

    # DDP compares annotations of a hook with types, and here they are strings.
    model.register_comm_hook(None, lambda _, bucket: reduced(bucket))

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, width)).square().mean().backward()
        optimizer.step()

    return step


def replicated_optimizer(run: Run, zero: bool = False, ms: float = 12, layers: int = 8) -> Step:
    """DDP with an optimizer that takes long, on every rank for all parameters or on each for its part."""
    model = DistributedDataParallel(_layers(layers, 64, 2))
    slow = {"lr": 1e-3, "ms": ms}
    optimizer = (
        ZeroRedundancyOptimizer(model.parameters(), SlowSGD, **slow) if zero else SlowSGD(model.parameters(), **slow)
    )

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()

    return step


def recompute(run: Run, every: int = 1, ms: float = 6) -> Step:
    """DDP with every so many-th layer computed again in the backward pass; 0: none."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.LayerNorm(64), Layer(64, ms)) for _ in range(6))

        def forward(self, x: Tensor) -> Tensor:
            for number, layer in enumerate(self.layers):
                x = checkpoint(layer, x, use_reentrant=False) if every and number % every == 0 else layer(x)
            return x

    model = DistributedDataParallel(Model())
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()

    return step


def sharded(
    run: Run,
    reshard: bool = True,
    batches: int = 1,
    sync_last: bool = False,
    width: int = 1024,
    layers: int = 4,
    ms: float = 4,
) -> Step:
    """FSDP2, a unit for each layer."""
    mesh = init_device_mesh("cpu", (run.ranks,), mesh_dim_names=("dp",))
    model = _layers(layers, width, ms)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        for number in range(batches):
            if sync_last:
                model.set_requires_gradient_sync(number == batches - 1)
                model.set_reshard_after_backward(number == batches - 1)
            (model(torch.randn(8, width)).square().mean() / batches).backward()
        optimizer.step()

    return step


def sharded_finely(run: Run, fine: bool = True, parts: int = 8, layers: int = 3, ms: float = 4) -> Step:
    """FSDP2, a unit for each small part of each layer, or for each layer."""
    mesh = init_device_mesh("cpu", (run.ranks,), mesh_dim_names=("dp",))
    model = nn.Sequential(*(Deep(64, parts, ms) for _ in range(layers)))
    for layer in model:
        for part in layer.parts if fine else ():
            fully_shard(part, mesh=mesh)
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()

    return step


def tensor_parallel(run: Run, slow: float = 1, ms: float = 5, layers: int = 3) -> Step:
    """Each layer split over all ranks. The last rank's device is `slow` times as slow."""
    mesh = init_device_mesh("cpu", (run.ranks,), mesh_dim_names=("tp",))
    model = nn.Sequential(*(SplitLayer(128, ms * _last(run, slow), mesh.get_group()) for _ in range(layers)))
    optimizer = _sgd(model)
    drawn = torch.Generator().manual_seed(0)

    def step() -> None:
        inputs = torch.randn(32, 128, generator=drawn, requires_grad=True)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()

    return step


def _difference(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets).square().mean()


def _pipeline_step(
    schedule: Any, model: nn.Module, stage: int, stages: int, rows: int, load: float = 0, then: Step = lambda: None
) -> Step:
    optimizer = _sgd(model)
    loader = iter(DataLoader(Slow(64, load / rows), batch_size=rows)) if load and stage == 0 else None

    def step() -> None:
        optimizer.zero_grad()
        if stage == 0:
            inputs = next(loader).requires_grad_() if loader else torch.randn(rows, 64, requires_grad=True)
            schedule.step(inputs)
        elif stage == stages - 1:
            schedule.step(target=torch.randn(rows, 64))
        else:
            schedule.step()
        then()
        optimizer.step()

    return step


def pipeline(run: Run, split: tuple[int, ...] = (2, 2, 2), batches: int = 4, ms: float = 12, load: float = 0) -> Step:
    """1F1B over all ranks. A layer takes `ms` for all micro-batches together, and twice that for the backward pass."""
    model = _layers(split[run.rank], 64, ms / batches)
    stage = pipelining.PipelineStage(model, run.rank, run.ranks, torch.device("cpu"))
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=batches, loss_fn=_difference)
    return _pipeline_step(schedule, model, run.rank, run.ranks, 4 * batches, load)


def pipeline_of_replicas(run: Run, slow: float = 1, batches: int = 4, ms: float = 10) -> Step:
    """Two stages, each of them on half of the ranks. The last rank's device is `slow` times as slow."""
    mesh = init_device_mesh("cpu", (2, run.ranks // 2), mesh_dim_names=("pp", "dp"))
    at, replicas = mesh["pp"].get_local_rank(), mesh.get_group("dp")
    model = _layers(2, 64, ms * _last(run, slow) / batches)
    stage = pipelining.PipelineStage(model, at, 2, torch.device("cpu"), group=mesh.get_group("pp"))
    schedule = pipelining.Schedule1F1B(stage, n_microbatches=batches, loss_fn=_difference)

    def reduce() -> None:
        gradients = torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None])
        dist.all_reduce(gradients, group=replicas)
        begin = 0
        for one in model.parameters():
            one.grad = gradients[begin : begin + one.numel()].view_as(one) / (run.ranks // 2)
            begin += one.numel()

    return _pipeline_step(schedule, model, at, 2, 4 * batches, then=reduce)


def experts(run: Run, first: float = 0, tokens: int = 256, us: float = 60, layers: int = 2) -> Step:
    """An expert on each rank, and tokens dispatched to them: the share `first` of all to the first one."""
    share = first or 1 / run.ranks
    odds = torch.tensor([share, *[(1 - share) / (run.ranks - 1)] * (run.ranks - 1)])
    model = nn.ModuleList(nn.Linear(64, 64, bias=False) for _ in range(layers))
    optimizer = _sgd(model)

    def step() -> None:
        optimizer.zero_grad()
        h = torch.randn(tokens, 64, requires_grad=True)
        for expert in model:
            chosen = torch.multinomial(odds, tokens, replacement=True)
            order = chosen.argsort()
            sent = torch.bincount(chosen, minlength=run.ranks)
            received = torch.empty_like(sent)
            dist.all_to_all_single(received, sent)
            theirs, ours = received.tolist(), sent.tolist()
            x = all_to_all_single(torch.empty(sum(theirs), 64), h[order], theirs, ours)
            x = compute(expert(x), len(x) * us * MS, 2 * len(x) * us * MS)
            h = h + all_to_all_single(torch.empty(tokens, 64), x, ours, theirs)[order.argsort()]
        h.square().mean().backward()
        optimizer.step()

    return step


KINDS: dict[str, Callable[..., Step]] = {
    kind.__name__: kind
    for kind in (
        data_parallel,
        accumulation,
        slow_wire,
        replicated_optimizer,
        recompute,
        sharded,
        sharded_finely,
        tensor_parallel,
        pipeline,
        pipeline_of_replicas,
        experts,
    )
}


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("option", nargs="*", help="name=value")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--beside", nargs="*", metavar="OPTION", help="in turn, so many steps of another such job")
    parser.add_argument("--in-turn", type=int, default=6, help="how many")
    given = parser.parse_args()
    run = harness.joined("strong", given.steps, "cpu", None)
    ways = [given.option] if given.beside is None else [given.option, given.beside]
    jobs = [KINDS[given.kind](run, **_options(way)) for way in ways]
    torch.manual_seed(run.rank)
    run.begin()
    number = 0
    while True:
        jobs[number // given.in_turn % len(jobs)]()
        number += 1
        if run.stepped():
            return


def _options(given: list[str]) -> dict[str, Any]:
    return {name: ast.literal_eval(value) for name, value in (one.split("=", 1) for one in given)}


if __name__ == "__main__":
    main()
