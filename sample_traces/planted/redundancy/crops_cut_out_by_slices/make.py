"""Every window of a feature map is a slice of its own; going back, each fills a map of zeros to put its gradient in."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

WINDOWS = {"weak": 3, "medium": 8, "strong": 32}  # Of an image.
SIDE, SIZE, BATCH = 64, 5, 4  # Of an image in pixels, and of a window in cells of the feature map.


class Detector(torch.nn.Module):
    """A backbone, and a head that says what a window of its map shows."""

    def __init__(self, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.backbone = torch.nn.Sequential(
            torch.nn.Conv2d(3, 32, 3, stride=2, padding=1),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(32, 48, 3, padding=1),
            torch.nn.ReLU(inplace=True),
        )
        self.head = torch.nn.Linear(48 * SIZE * SIZE, 12)

    def forward(self, images: torch.Tensor, corners: list[list[tuple[int, int]]]) -> torch.Tensor:
        """The score of each class, for each window of each image."""
        maps = self.backbone(images)
        places = [(number, y, x) for number, some in enumerate(corners) for y, x in some]
        if self.fixed:
            number, y, x = torch.tensor(places, device=maps.device).T[:, :, None, None]
            reach = torch.arange(SIZE, device=maps.device)
            windows = maps.permute(0, 2, 3, 1)[number, y + reach[:, None], x + reach].permute(0, 3, 1, 2)
        else:
            windows = torch.stack([maps[number, :, y : y + SIZE, x : x + SIZE] for number, y, x in places])
        scores: torch.Tensor = self.head(windows.flatten(1))
        return scores


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    each = WINDOWS[run.level]
    images = torch.rand(128, 3, SIDE, SIDE, device=run.device)
    last = SIDE // 2 - SIZE
    corners = [[(random.randint(0, last), random.randint(0, last)) for _ in range(each)] for _ in images]
    labels = torch.randint(12, (128, each), device=run.device)
    model = Detector(run.fixed).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    while True:
        for chosen in torch.randperm(128).split(BATCH):
            optimizer.zero_grad()
            scores = model(images[chosen], [corners[one] for one in chosen.tolist()])
            loss = torch.nn.functional.cross_entropy(scores, labels[chosen].flatten())
            loss.backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every window selects an image's map, and goes back alone."""
    back = [span for span in harness.spans(trace) if span["name"] == "aten::select_backward"]
    harness.expect(len(back) >= 8 * len(harness.steps(trace)), "few windows go back alone")


if __name__ == "__main__":
    main()
