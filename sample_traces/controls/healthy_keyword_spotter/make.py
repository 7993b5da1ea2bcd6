"""Spoken words are told apart by bands of sound over time, some of which are hidden while the net learns."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 160, "medium": 224, "strong": 320}
BATCH, FRAMES, BANDS, WORDS = 32, 48, 64, 35


class Spotter(torch.nn.Module):
    """Frames in pieces of four, two recurrent layers, and a guess."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pieces = torch.nn.Linear(4 * BANDS, width)
        self.norm = torch.nn.LayerNorm(width)
        self.order = torch.nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.guess = torch.nn.Linear(width, WORDS)

    def forward(self, sound: torch.Tensor) -> torch.Tensor:
        """The score of each word."""
        pieces = self.norm(self.pieces(sound.view(BATCH, FRAMES // 4, 4 * BANDS)))
        _, (last, _) = self.order(pieces)
        scores: torch.Tensor = self.guess(last[-1])
        return scores


def hide(sound: torch.Tensor) -> torch.Tensor:
    """Silence a few bands, and a short time."""
    band, frame = random.randrange(BANDS - 8), random.randrange(FRAMES - 6)
    sound[:, :, band : band + 8] = 0
    sound[:, frame : frame + 6] = 0
    return sound


def main() -> None:
    """Train."""
    run = harness.start()
    random.seed(harness.SEED)
    sounds, labels = torch.randn(1024, FRAMES, BANDS), torch.randint(WORDS, (1024,))
    model = Spotter(WIDTH[run.level])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=500)
    hits, seen, report = torch.zeros((), dtype=torch.long), 0, ""
    while True:
        for chosen in torch.randperm(len(sounds)).split(BATCH):
            truth = labels[chosen]
            scores = model(hide(sounds[chosen]))
            loss = torch.nn.functional.cross_entropy(scores, truth, label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            hits += (scores.argmax(dim=1) == truth).sum()
            seen += BATCH
            if seen % (20 * BATCH) == 0:
                report = f"loss {loss.item():.3f}, hits {hits.item() / seen:.1%}"
            if run.stepped():
                logged(report)
                return


def logged(report: str) -> None:
    """Tell how far it came."""
    print(report)


def verify(trace: Path) -> None:
    """Every step calls torch's own recurrent layer, once."""
    calls = [span for span in harness.spans(trace) if span["name"] == "aten::lstm"]
    harness.expect(len(calls) >= len(harness.steps(trace)), "there is no recurrent layer")


if __name__ == "__main__":
    main()
