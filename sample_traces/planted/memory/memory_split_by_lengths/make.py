"""Each length needs blocks of another size, and cached ones may not be split: memory is got anew in every step."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LONGEST = {"weak": 32768, "medium": 8192, "strong": 512}
TOKENS, HEADS = 65536, 8
MEMORY = 5_000_000_000


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
    """Train on sequences of random lengths."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    if on_gpu:
        settings = "expandable_segments:True" if run.fixed else "max_split_size_mb:32"
        torch.cuda.memory._set_allocator_settings(settings)
        torch.cuda.set_per_process_memory_fraction(MEMORY / torch.cuda.get_device_properties().total_memory)
    scale = 1 if on_gpu else 64
    longest, width = LONGEST[run.level] // scale, 1024 // scale
    with run.device:
        inputs = torch.rand(TOKENS // scale // longest, longest, width, dtype=torch.bfloat16)
        model = Attention(width).bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in run:
        length = int(torch.randint(longest // 2, longest, ())) // 8 * 8
        optimizer.zero_grad()
        model(inputs[:, :length]).square().mean().backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Steps free memory of the GPU, and get it anew."""
    calls = [span["name"] for span in harness.spans(trace) if span.get("cat") == "cuda_runtime"]
    fewest = min(calls.count("cudaFree"), calls.count("cudaMalloc"))
    harness.expect(fewest >= len(harness.steps(trace)) > 0, "no memory is got anew")


if __name__ == "__main__":
    main()
