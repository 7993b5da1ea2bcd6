"""Gradients of a model that computes in bf16 are sent in fp32."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

TOKENS = {"weak": 2048, "medium": 1024, "strong": 256}
LAYERS = 3


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (128, 32) if run.device.type == "cpu" else (8192, TOKENS[run.level])
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        inputs = torch.randn(tokens, width)
    model = DistributedDataParallel(torch.nn.Sequential(*layers), gradient_as_bucket_view=True)
    if run.fixed and run.device.type == "cuda":
        model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """What is reduced is fp32."""
    told = [span["args"] for span in harness.spans(trace) if span["name"] == "record_param_comms"]
    sent = [args["dtype"] for args in told if args.get("Collective name") == "allreduce"]
    harness.expect(len(sent) >= len(harness.steps(trace)), "nothing is reduced")
    harness.expect(set(sent) == {"Float"}, "what is reduced is not fp32")


if __name__ == "__main__":
    main()
