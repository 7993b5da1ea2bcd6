"""Memory is nearly full, so that the allocator gives its cached blocks back in every step to get others."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ROWS = {"weak": 32768, "medium": 12288, "strong": 8192}
WIDTH = {"weak": 8192, "medium": 8192, "strong": 4096}
FEATURES = 256


def main() -> None:
    """Train a student to do as its teacher, which computes on a stream of its own."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    scale = 1 if on_gpu else 64
    rows, width = ROWS[run.level] // scale, WIDTH[run.level] // scale
    with run.device:
        inputs = torch.rand(rows, FEATURES, dtype=torch.bfloat16)
        student = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
            torch.nn.GELU(),
            torch.nn.Linear(width, width),
        ).bfloat16()
        teacher = torch.nn.Sequential(
            torch.nn.Linear(FEATURES, 4 * width), torch.nn.GELU(), torch.nn.Linear(4 * width, width)
        ).bfloat16()
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)
    teaching = torch.cuda.Stream() if on_gpu else None

    def step(parts: int) -> None:
        optimizer.zero_grad()
        for part in inputs.chunk(parts):
            if teaching is not None:
                teaching.wait_stream(torch.cuda.current_stream())
            with torch.no_grad(), torch.cuda.stream(teaching):
                wanted = teacher(part)
            if teaching is not None:
                torch.cuda.current_stream().wait_stream(teaching)
            (torch.nn.functional.mse_loss(student(part), wanted) / parts).backward()
        optimizer.step()

    step(parts=1)
    if on_gpu:
        needed = torch.cuda.max_memory_allocated() + 4 * inputs.element_size() * rows * width
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(needed / torch.cuda.get_device_properties().total_memory)
    for _ in run:
        step(parts=2 if run.fixed else 1)


def verify(trace: Path) -> None:
    """Every step frees memory of the GPU, and gets it anew."""
    calls = [span["name"] for span in harness.spans(trace) if span.get("cat") == "cuda_runtime"]
    fewest = min(calls.count("cudaFree"), calls.count("cudaMalloc"))
    harness.expect(fewest >= len(harness.steps(trace)) - 1 > 0, "no memory is got anew")


if __name__ == "__main__":
    main()
