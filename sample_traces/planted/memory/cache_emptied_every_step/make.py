"""The allocator's cache is given back to the GPU in every step."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LENGTH = {"weak": 32768, "medium": 16384, "strong": 1024}
TOKENS = {"weak": 32768, "medium": 16384, "strong": 16384}
HEADS = 8


class Attention(torch.nn.Module):
    """One layer of self-attention."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.projected = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Attend to all tokens of the sequence. Shape (sequences, length, width)."""
        query, key, value = self.projected(inputs).unflatten(2, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value)
        result: torch.Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    scale = 1 if on_gpu else 32
    length, width = LENGTH[run.level] // scale, 1024 // scale
    with run.device:
        inputs = torch.rand(TOKENS[run.level] // scale // length, length, width, dtype=torch.bfloat16)
        model = Attention(width).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        if on_gpu and not run.fixed:
            torch.cuda.empty_cache()


def verify(trace: Path) -> None:
    """Every step frees memory of the GPU, and gets it anew."""
    calls = [span["name"] for span in harness.spans(trace) if span.get("cat") == "cuda_runtime"]
    fewest = min(calls.count("cudaFree"), calls.count("cudaMalloc"))
    harness.expect(fewest >= 2 * (len(harness.steps(trace)) - 1) > 0, "the cache is not emptied in every step")


if __name__ == "__main__":
    main()
