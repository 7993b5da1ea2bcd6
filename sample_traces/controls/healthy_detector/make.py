"""A detector of middles on images in memory: convolutions of layout NHWC, boxes read where there are objects."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 24, "medium": 32, "strong": 48}
IMAGES, SIDE, GRID, OBJECTS, CLASSES, BATCH = 256, 64, 16, 4, 8, 8


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    images = torch.rand(IMAGES, SIDE, SIDE, 3, device=run.device)
    cells = torch.rand(IMAGES, GRID * GRID, device=run.device).argsort(dim=1)[:, :OBJECTS]
    kinds = torch.randint(CLASSES, (IMAGES, OBJECTS), device=run.device)
    boxes = torch.rand(IMAGES, OBJECTS, 4, device=run.device)
    maps = torch.zeros(IMAGES, GRID * GRID, CLASSES, device=run.device)
    maps[torch.arange(IMAGES, device=run.device)[:, None], cells, kinds] = 1
    trunk = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(2 * width, 2 * width, 3, padding=1),
        torch.nn.ReLU(),
    ).to(run.device, memory_format=torch.channels_last)
    head = torch.nn.Linear(2 * width, CLASSES + 4).to(run.device)
    weights = [*trunk.parameters(), *head.parameters()]
    average = copy.deepcopy(weights)
    optimizer = torch.optim.AdamW(weights, lr=0.001, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda number: min(1.0, (number + 1) / 200))
    rare = torch.full((CLASSES,), 20.0, device=run.device)
    number, told = 0, []
    while True:
        number += 1
        chosen = torch.randint(IMAGES, (BATCH,), device=run.device)
        seen = trunk(images[chosen].permute(0, 3, 1, 2)).permute(0, 2, 3, 1).flatten(1, 2)
        scores, places = head(seen).split([CLASSES, 4], dim=2)
        found = places.gather(1, cells[chosen][..., None].expand(-1, -1, 4))
        loss = torch.nn.functional.binary_cross_entropy_with_logits(scores, maps[chosen], pos_weight=rare)
        loss = loss + torch.nn.functional.smooth_l1_loss(found, boxes[chosen], beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        with torch.no_grad():
            torch._foreach_lerp_(average, weights, 0.002)
        if number % 25 == 0:
            told.append(f"{number}: {loss.item():.4f} at {schedule.get_last_lr()[0]:.2g}")
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step convolves three times, and updates and averages all weights at once."""
    number = len(harness.steps(trace))
    forward = [span for span in harness.spans(trace) if span["name"] == "aten::conv2d"]
    harness.expect(len(forward) >= 3 * (number - 1), "few convolutions")
    harness.expect(len(harness.named(trace, "aten::_fused_adamw_")) <= number, "weights are updated one by one")
    harness.expect(len(harness.named(trace, "aten::_foreach_lerp_")) <= number, "weights are averaged one by one")


if __name__ == "__main__":
    main()
