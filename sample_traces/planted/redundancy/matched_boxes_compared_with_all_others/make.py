"""A detector's boxes are compared with all true boxes, though each is matched with one: the diagonal is taken."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

MATCHED = {"weak": 56, "medium": 88, "strong": 200}
QUERIES, FEATURES, WIDTH, CLASSES, SCENES = 400, 128, 256, 20, 8


def area(low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Of boxes between two corners; nothing if these are the wrong way around."""
    width, height = (high - low).clamp(min=0).unbind(-1)
    return width * height


def overlap(some: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Generalised overlap of boxes, which are given by their lower and upper corners."""
    low, high = some.split(2, dim=-1)
    other_low, other_high = other.split(2, dim=-1)
    inside = area(torch.maximum(low, other_low), torch.minimum(high, other_high))
    union = area(low, high) + area(other_low, other_high) - inside
    hull = area(torch.minimum(low, other_low), torch.maximum(high, other_high))
    return inside / union - (hull - union) / hull


def corners(boxes: torch.Tensor) -> torch.Tensor:
    """Of boxes given by middle and sides."""
    middle, sides = boxes.split(2, dim=-1)
    return torch.cat([middle - sides / 2, middle + sides / 2], dim=-1)


def main() -> None:
    """Train."""
    run = harness.start()
    matched = MATCHED[run.level]
    trunk = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, WIDTH),
        torch.nn.ReLU(),
        torch.nn.Linear(WIDTH, FEATURES),
        torch.nn.ReLU(),
        torch.nn.Linear(FEATURES, CLASSES + 4),
    ).to(run.device)
    optimizer = torch.optim.AdamW(trunk.parameters(), lr=0.0005, fused=True)
    scenes = torch.randn(SCENES, QUERIES, FEATURES, device=run.device)
    kinds = torch.randint(CLASSES, (SCENES, QUERIES), device=run.device)
    places = torch.rand(SCENES, matched, 4, device=run.device) * 0.4 + 0.3
    pairings = torch.rand(SCENES, QUERIES, device=run.device).argsort(dim=1)[:, :matched]
    number = 0
    while True:
        scene = number % SCENES
        number += 1
        scores, boxes = trunk(scenes[scene]).split([CLASSES, 4], dim=-1)
        boxes, truth = boxes.sigmoid()[pairings[scene]], places[scene]
        if run.fixed:
            near = overlap(corners(boxes), corners(truth))
        else:
            near = overlap(corners(boxes)[:, None], corners(truth)[None]).diagonal()
        loss = torch.nn.functional.cross_entropy(scores, kinds[scene])
        loss = loss + 5 * torch.nn.functional.l1_loss(boxes, truth) + 2 * (1 - near).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step divides a table of all by all, and takes its diagonal."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    number = len(harness.steps(trace))
    spans = harness.spans(trace)
    taken = [span for span in spans if span["name"] == "aten::diagonal"]
    harness.expect(len(taken) >= number - 1, "no diagonals")
    tables = [span["args"]["Input Dims"][0] for span in taken]
    harness.expect(all(one[0] == one[1] and one[0] in MATCHED.values() for one in tables), "other tables")


if __name__ == "__main__":
    main()
