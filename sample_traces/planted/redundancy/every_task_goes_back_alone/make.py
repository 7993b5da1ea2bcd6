"""A net learns several tasks at once, with a common trunk and a head for each."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

TASKS = {"weak": 2, "medium": 3, "strong": 5}
LAYERS = {"weak": 2, "medium": 3, "strong": 5}
WIDTH = 384


def layers(count: int) -> torch.nn.Sequential:
    """So many layers."""
    made = [layer for _ in range(count) for layer in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())]
    return torch.nn.Sequential(*made)


def main() -> None:
    """Train."""
    run = harness.start()
    trunk = layers(LAYERS[run.level])
    heads = torch.nn.ModuleList(layers(1).append(torch.nn.Linear(WIDTH, 10)) for _ in range(TASKS[run.level]))
    optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.01, fused=True)
    inputs = torch.rand(192, WIDTH)
    labels = torch.randint(10, (len(heads), 192))
    while True:
        optimizer.zero_grad()
        common = trunk(inputs)
        guesses = [head(common) for head in heads]
        losses = [torch.nn.functional.cross_entropy(*pair) for pair in zip(guesses, labels, strict=True)]
        if run.fixed:
            torch.stack(losses).sum().backward()
        else:
            for loss in losses:
                loss.backward(retain_graph=True)
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """More layers are gone through backward than forward."""
    back = harness.named(trace, "autograd::engine::evaluate_function: AddmmBackward0")
    forth = [span for span in harness.spans(trace) if span["name"] == "aten::addmm"]
    harness.expect(len(back) > 1.1 * len(forth), "every layer is gone back through once")


if __name__ == "__main__":
    main()
