"""Messages for debugging are put together in every step, though the logger passes none of them on."""

from __future__ import annotations

import logging
from pathlib import Path

import torch

from sample_traces import harness

SIDE = {"weak": 48, "medium": 30, "strong": 16}  # Of an image, in pixels.

log = logging.getLogger("training")


class Classifier(torch.nn.Module):
    """Two convolutions, and a guess."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 32, 3, padding=1)
        self.body = torch.nn.Conv2d(32, 32, 3, stride=2, padding=1)
        self.guess = torch.nn.Linear(32, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """The score of each class."""
        seen = self.body(self.stem(images).relu()).relu()
        scores: torch.Tensor = self.guess(seen.mean(dim=(2, 3)))
        return scores


def main() -> None:
    """Train."""
    run = harness.start()
    logging.basicConfig(level=logging.INFO)
    side = SIDE[run.level]
    images = torch.rand(640, 3, side, side)
    labels = torch.randint(10, (640,))
    model = Classifier(10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    number = 0
    while True:
        for chosen in torch.randperm(640).split(32):
            number += 1
            optimizer.zero_grad()
            scores = model(images[chosen])
            loss = torch.nn.functional.cross_entropy(scores, labels[chosen])
            loss.backward()
            slope = model.stem.weight.grad
            if run.fixed:
                log.debug("step %d: loss %s, scores %s, slope %s", number, loss, scores, slope)
            else:
                log.debug(f"step {number}: loss {loss}, scores {scores}, slope {slope}")
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Numbers are read one by one, many in every step, to be written as text."""
    read = [span for span in harness.spans(trace) if span["name"] == "aten::item"]
    harness.expect(len(read) >= 100 * len(harness.steps(trace)), "few numbers are read")


if __name__ == "__main__":
    main()
