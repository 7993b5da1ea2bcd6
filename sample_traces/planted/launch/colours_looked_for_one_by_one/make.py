"""Painted masks become labels by looking for one colour after the other in the whole batch."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

COLOURS = {"weak": 6, "medium": 16, "strong": 48}
"""That masks are painted in; some mean the same class."""
SIDE, BATCH, CLASSES, WIDTH = 80, 4, 6, 48


class Labels:
    """Tells the class of each pixel by the colour it is painted in."""

    def __init__(self, palette: torch.Tensor, fixed: bool) -> None:
        self.palette, self.fixed = palette, fixed
        weights = torch.tensor([65536, 256, 1], device=palette.device)
        self.table = torch.zeros(256**3, dtype=torch.uint8, device=palette.device)
        classes = torch.arange(len(palette), device=palette.device) % CLASSES
        self.table[(palette.long() * weights).sum(dim=1)] = classes.to(torch.uint8)

    def __call__(self, painted: torch.Tensor) -> torch.Tensor:
        """Classes, of masks with three bytes a pixel."""
        if self.fixed:
            red, green, blue = painted.int().unbind(dim=-1)
            return self.table[(red << 16) | (green << 8) | blue].long()
        labels = torch.zeros(painted.shape[:-1], dtype=torch.int64, device=painted.device)
        for number, colour in enumerate(self.palette):
            labels[(painted == colour).all(dim=-1)] = number % CLASSES
        return labels


def main() -> None:
    """Train."""
    run = harness.start()
    colours = COLOURS[run.level]
    palette = torch.randint(256, (colours, 3), dtype=torch.uint8)
    blobs = torch.randint(colours, (64, SIDE // 8, SIDE // 8)).repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    painted = palette[blobs].to(run.device)
    images = torch.rand(64, 3, SIDE, SIDE, device=run.device)
    label = Labels(palette.to(run.device), run.fixed)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, WIDTH, 3, stride=4, padding=1),
        torch.nn.ReLU(inplace=True),
        torch.nn.Conv2d(WIDTH, 2 * WIDTH, 3, padding=1),
        torch.nn.ReLU(inplace=True),
        torch.nn.Conv2d(2 * WIDTH, CLASSES, 1),
        torch.nn.Upsample(scale_factor=4, mode="bilinear"),
    ).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    while True:
        for chosen in torch.randperm(64).split(BATCH):
            optimizer.zero_grad()
            scores = model(images[chosen])
            loss = torch.nn.functional.cross_entropy(scores, label(painted[chosen]))
            loss.backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step compares its masks with every colour."""
    compared = [span for span in harness.spans(trace) if span["name"] == "aten::all"]
    often = COLOURS["weak"] * len(harness.steps(trace))
    harness.expect(len(compared) >= often, "masks are not compared with every colour")


if __name__ == "__main__":
    main()
