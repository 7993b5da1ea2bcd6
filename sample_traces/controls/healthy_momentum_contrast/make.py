"""Two views of a thing are drawn together, helped by a net that follows slowly and by a ring of earlier views."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 448, "medium": 576, "strong": 704}
BATCH, RING, OUT, SHARPNESS = 256, 512, 64, 5.0


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    left, right = torch.rand(2, 4096, 128, device=run.device)
    net = torch.nn.Sequential(
        torch.nn.Linear(128, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, width),
        torch.nn.ReLU(inplace=True),
        torch.nn.Linear(width, OUT),
    ).to(run.device)
    follower = copy.deepcopy(net).requires_grad_(False)
    leading, following = list(net.parameters()), list(follower.parameters())
    ring = torch.nn.functional.normalize(torch.randn(RING, OUT, device=run.device))
    first = torch.zeros(BATCH, dtype=torch.int64, device=run.device)
    optimizer = torch.optim.SGD(leading, lr=0.03, momentum=0.9, fused=True)
    number, total = 0, 0.0
    while True:
        for chosen in torch.randperm(len(left)).split(BATCH):
            with torch.no_grad():
                torch._foreach_lerp_(following, leading, 0.01)
                keys = torch.nn.functional.normalize(follower(right[chosen]))
            optimizer.zero_grad()
            queries = SHARPNESS * torch.nn.functional.normalize(net(left[chosen]))
            same = (queries * keys).sum(dim=1, keepdim=True)
            scores = torch.cat([same, queries @ ring.T], dim=1)
            loss = torch.nn.functional.cross_entropy(scores, first)
            loss.backward()
            optimizer.step()
            begin = number * BATCH % RING
            ring[begin : begin + BATCH].copy_(keys)
            number += 1
            if number % 25 == 0:
                total += loss.item()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step moves the follower at once, and renews a part of the ring."""
    moved = [span for span in harness.spans(trace) if span["name"] == "aten::_foreach_lerp_"]
    harness.expect(len(moved) >= len(harness.steps(trace)), "the follower does not follow")


if __name__ == "__main__":
    main()
