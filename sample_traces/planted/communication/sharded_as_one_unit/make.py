"""FSDP gathers the whole model at once, before the forward pass, as no layer is a unit of its own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from sample_traces import harness

TOKENS = {"weak": 8192, "medium": 2048, "strong": 1024}
LAYERS = 4


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (128, 32) if run.device.type == "cpu" else (8192, TOKENS[run.level])
    with run.device:
        layers = [
            torch.nn.Sequential(torch.nn.Linear(width, width, bias=False), torch.nn.GELU()) for _ in range(LAYERS)
        ]
        model = torch.nn.Sequential(*layers)
        inputs = torch.randn(tokens, width)
    mesh = init_device_mesh(run.device.type, (run.ranks,))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for unit in [*layers, model] if run.fixed else [model]:
        fully_shard(unit, mesh=mesh, mp_policy=policy)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """A step gathers weights less often than it has layers."""
    steps, gathered = harness.steps(trace), harness.named(trace, "c10d::_allgather_base_")
    harness.expect(len(steps) <= len(gathered) < LAYERS * len(steps), "layers are gathered one by one, or not at all")


if __name__ == "__main__":
    main()
