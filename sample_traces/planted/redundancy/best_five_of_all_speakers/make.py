"""A net that tells speakers by their voice sorts the scores of all speakers to look at the best five."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

SPEAKERS = {"weak": (420, 352), "medium": (900, 288), "strong": (8000, 96)}
"""How many there are, and the net's width."""
BATCH, FRAMES, BANDS = 32, 50, 40


class Voice(torch.nn.Module):
    """Frames of sound become a direction, which is compared to the direction of each speaker."""

    def __init__(self, speakers: int, width: int) -> None:
        super().__init__()
        self.frames = torch.nn.Linear(BANDS, width)
        self.whole = torch.nn.Linear(width, width)
        self.known = torch.nn.Parameter(torch.randn(speakers, width))

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """Scores of all speakers."""
        direction = torch.nn.functional.normalize(self.whole(self.frames(sound).relu().mean(dim=1)), dim=1)
        return 20 * torch.nn.functional.linear(direction, torch.nn.functional.normalize(self.known, dim=1))


def main() -> None:
    """Train."""
    run = harness.start()
    speakers, width = SPEAKERS[run.level]
    sounds = torch.randn(1024, FRAMES, BANDS)
    labels = torch.randint(speakers, (1024,))
    model = Voice(speakers, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
    hits = torch.zeros((), dtype=torch.long)
    while True:
        for chosen in torch.randperm(1024).split(BATCH):
            optimizer.zero_grad()
            scores, truth = model(sounds[chosen]), labels[chosen]
            loss = torch.nn.functional.cross_entropy(scores, truth)
            loss.backward()
            optimizer.step()
            ranked = scores.detach()
            best = ranked.topk(5).indices if run.fixed else ranked.argsort(dim=1, descending=True)[:, :5]
            hits += (best == truth[:, None]).sum()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step sorts the scores of all speakers."""
    trace = trace.with_name("rank0.detail.json.gz")
    ordered = [span for span in harness.spans(trace) if span["name"] == "aten::sort"]
    whole = [span for span in ordered if span["args"]["Input Dims"][0][1:] >= [100]]
    harness.expect(len(whole) >= len(harness.steps(trace)), "the scores are not sorted")


if __name__ == "__main__":
    main()
