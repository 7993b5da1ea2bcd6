"""A classifier behind a bf16 model multiplies in fp32, and TF32 is not allowed."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sample_traces import harness

CLASSES = {"weak": 192, "medium": 768, "strong": 4096}
LAYERS = 6

ORDINARY_UNITS = re.compile(r"sgemm|simt|_ffma_")  # In the names of kernels that multiply in fp32 without Tensor Cores.


def main() -> None:
    """Train."""
    run = harness.start()
    width, tokens = (64, 32) if run.device.type == "cpu" else (4096, 8192)
    if run.fixed:
        torch.set_float32_matmul_precision("high")
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        encoder = torch.nn.Sequential(*layers)
        classifier = torch.nn.Linear(width, CLASSES[run.level], bias=False)
        inputs = torch.randn(tokens, width)
        labels = torch.randint(CLASSES[run.level], (tokens,))
    optimizer = torch.optim.SGD([*encoder.parameters(), *classifier.parameters()], lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            features = encoder(inputs)
        logits = classifier(features.float())
        torch.nn.functional.cross_entropy(logits, labels).backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """Matrix multiplications in fp32 without Tensor Cores take some of the device's time."""
    kernels = [span for span in harness.spans(trace) if span.get("cat") == "kernel"]
    slow = sum(span["dur"] for span in kernels if ORDINARY_UNITS.search(span["name"]))
    harness.expect(slow > 0.03 * sum(span["dur"] for span in kernels), "hardly any matmul runs in full fp32")


if __name__ == "__main__":
    main()
