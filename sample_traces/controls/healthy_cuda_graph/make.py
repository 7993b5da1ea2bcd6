"""Forward and backward pass of many small layers are a CUDA graph, so that the host has little to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from sample_traces import harness

TOKENS = {"weak": 8192, "medium": 16384, "strong": 32768}
LAYERS = 8


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    width, tokens = (1024, TOKENS[run.level]) if on_gpu else (64, 32)
    with run.device:
        layers: list[torch.nn.Module] = []
        for _ in range(LAYERS):
            layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.GELU()]
        model = torch.nn.Sequential(*layers)
        batches = [torch.randn(tokens, width) for _ in range(3)]
        inputs = torch.randn(tokens, width)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def gradients() -> None:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            outputs = model(inputs)
        outputs.float().square().mean().backward()

    renewed = captured(gradients) if on_gpu else gradients
    while True:
        for batch in batches:
            inputs.copy_(batch)
            renewed()
            optimizer.step()
            if run.stepped():
                return


def captured(work: Callable[[], None]) -> Callable[[], None]:
    """What does this work again as a CUDA graph, once libraries have allocated what they need for it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return lambda: graph.replay()


def verify(trace: Path) -> None:
    """Every step launches a graph."""
    launches = harness.named(trace, "cudaGraphLaunch")
    harness.expect(len(launches) >= len(harness.steps(trace)), "no graph is launched")


if __name__ == "__main__":
    main()
