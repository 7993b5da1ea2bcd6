"""Batches are copied from memory that is not pinned, and a classifier multiplies in fp32 without TF32."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sample_traces import harness

FIELDS = {"weak": 128, "medium": 512, "strong": 2048}
CLASSES = {"weak": 192, "medium": 768, "strong": 4096}
LAYERS = 5

ORDINARY_UNITS = re.compile(r"sgemm|simt|_ffma_")  # In the names of kernels that multiply in fp32 without Tensor Cores.


def main() -> None:
    """Train."""
    run = harness.start()
    on_gpu = run.device.type == "cuda"
    width, samples = (4096, 8192) if on_gpu else (64, 32)
    pinned = run.fixes("copies") and on_gpu
    if run.fixes("precision"):
        torch.set_float32_matmul_precision("high")
    batches = [torch.randn(samples, FIELDS[run.level], pin_memory=pinned) for _ in range(3)]
    with run.device:
        layers = [part for _ in range(LAYERS) for part in (torch.nn.Linear(width, width, bias=False), torch.nn.GELU())]
        encoder = torch.nn.Sequential(torch.nn.Linear(FIELDS[run.level], width, bias=False), *layers)
        classifier = torch.nn.Linear(width, CLASSES[run.level], bias=False)
        labels = torch.randint(CLASSES[run.level], (samples,))
    optimizer = torch.optim.SGD([*encoder.parameters(), *classifier.parameters()], lr=0.01)
    while True:
        for batch in batches:
            inputs = batch.to(run.device, non_blocking=run.fixes("copies"))
            optimizer.zero_grad()
            with torch.autocast(run.device.type, torch.bfloat16):
                features = encoder(inputs)
            logits = classifier(features.float())
            torch.nn.functional.cross_entropy(logits, labels).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step copies from pageable memory, and multiplies in fp32 without Tensor Cores."""
    copies = harness.named(trace, "Memcpy HtoD (Pageable -> Device)")
    harness.expect(len(copies) >= len(harness.steps(trace)), "batches are not copied from pageable memory")
    kernels = [span for span in harness.spans(trace) if span.get("cat") == "kernel"]
    slow = sum(span["dur"] for span in kernels if ORDINARY_UNITS.search(span["name"]))
    harness.expect(slow > 0.03 * sum(span["dur"] for span in kernels), "hardly any matmul runs in full fp32")


if __name__ == "__main__":
    main()
