"""Batches are copied from memory that is not pinned, and a classifier multiplies in fp32 without TF32."""

from __future__ import annotations

import torch

from sample_traces import harness

FIELDS = {"weak": 128, "medium": 512, "strong": 2048}
CLASSES = {"weak": 192, "medium": 768, "strong": 4096}
LAYERS = 5


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


if __name__ == "__main__":
    main()
