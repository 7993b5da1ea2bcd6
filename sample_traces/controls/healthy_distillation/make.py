"""A small net learns from what a large one makes of the same inputs, which are new in every step."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

BATCH = {"weak": 192, "medium": 320, "strong": 512}


def net(width: int) -> torch.nn.Sequential:
    """A net so wide."""
    return torch.nn.Sequential(
        torch.nn.Linear(128, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, 32),
    )


def main() -> None:
    """Train."""
    run = harness.start()
    teacher, student = net(768).eval().requires_grad_(False), net(384)
    optimizer = torch.optim.Adam(student.parameters(), fused=True)
    number, total = 0, 0.0
    while True:
        number += 1
        inputs = torch.rand(BATCH[run.level], 128)
        with torch.inference_mode():
            wanted = teacher(inputs).log_softmax(dim=1)
        optimizer.zero_grad()
        guesses = student(inputs).log_softmax(dim=1)
        loss = torch.nn.functional.kl_div(guesses, wanted, reduction="batchmean", log_target=True)
        loss.backward()
        optimizer.step()
        if number % 20 == 0:
            total += loss.item()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step has the forward passes of two nets, and the backward pass of one."""
    steps = len(harness.steps(trace))
    forth = [span for span in harness.spans(trace) if span["name"] == "aten::addmm"]
    back = harness.named(trace, "autograd::engine::evaluate_function: AddmmBackward0")
    harness.expect(len(forth) >= 6 * steps, "there are not two nets")
    harness.expect(len(back) <= 3 * steps, "the large net learns too")


if __name__ == "__main__":
    main()
