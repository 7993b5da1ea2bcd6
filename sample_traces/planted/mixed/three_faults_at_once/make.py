"""A classifier multiplies in fp32 without TF32, the loss is read in every step, and Adam updates one by one."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from sample_traces import harness

TOKENS = {"weak": 96, "medium": 24, "strong": 4}  # Of a document: what the encoder computes, which has no fault.

ORDINARY_UNITS = re.compile(r"sgemm|simt|_ffma_")  # In the names of kernels that multiply in fp32 without Tensor Cores.


def main() -> None:
    """Train."""
    run = harness.start()
    width, documents = (64, 16) if run.device.type == "cpu" else (4096, 1024)
    tokens, classes = TOKENS[run.level], width // 2
    if run.fixes("precision"):
        torch.set_float32_matmul_precision("high")
    with run.device:
        encoder = torch.nn.Sequential(
            torch.nn.Linear(width, width, bias=False), torch.nn.GELU(), torch.nn.Linear(width, width, bias=False)
        )
        classifier = torch.nn.Sequential(
            torch.nn.Linear(width, classes),
            torch.nn.ReLU(),
            torch.nn.Linear(classes, classes),
            torch.nn.ReLU(),
            torch.nn.Linear(classes, classes),
        )
        inputs = torch.randn(documents * tokens, width)
        labels = torch.randint(classes, (documents,))
    optimizer = torch.optim.Adam([*encoder.parameters(), *classifier.parameters()], foreach=run.fixes("optimizer"))
    total: float | torch.Tensor = 0.0
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            features = encoder(inputs).view(documents, tokens, width).mean(1)
        loss = torch.nn.functional.cross_entropy(classifier(features.float()), labels)
        loss.backward()
        total = total + (loss.detach() if run.fixes("reads") else loss.item())
        optimizer.step()


def verify(trace: Path) -> None:
    """There are slow matmuls, numbers read outside of the optimizer, and no update of several weights at once."""
    spans, steps = harness.spans(trace), harness.steps(trace)
    updates = [span for span in spans if span["name"].startswith("Optimizer.step")]
    reads = [span for span in spans if span["name"] == "aten::item"]
    of_updates = sum(1 for update in updates for _ in harness.within(reads, update))
    harness.expect(len(reads) - of_updates >= len(steps), "the loss is not read")
    harness.expect(len(updates) >= len(steps), "there is no optimizer")
    harness.expect(not harness.named(trace, "aten::_foreach_"), "several weights are updated at once")
    kernels = [span for span in spans if span.get("cat") == "kernel"]
    slow = sum(span["dur"] for span in kernels if ORDINARY_UNITS.search(span["name"]))
    harness.expect(slow > 0.03 * sum(span["dur"] for span in kernels), "hardly any matmul runs in full fp32")


if __name__ == "__main__":
    main()
