"""A classifier multiplies in fp32 without TF32, the loss is read in every step, and Adam updates one by one."""

from __future__ import annotations

import torch

from sample_traces import harness

TOKENS = {"weak": 96, "medium": 24, "strong": 4}
"""Of a document: what the encoder computes, which has no fault."""


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
    while True:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            features = encoder(inputs).view(documents, tokens, width).mean(1)
        loss = torch.nn.functional.cross_entropy(classifier(features.float()), labels)
        loss.backward()
        total = total + (loss.detach() if run.fixes("reads") else loss.item())
        optimizer.step()
        if run.stepped():
            return


if __name__ == "__main__":
    main()
