"""A speech recogniser: spectra of noisy sounds, a bidirectional LSTM, and letters without a given alignment."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 96, "medium": 128, "strong": 160}
SOUNDS, SAMPLES, LETTERS, WINDOW, HOP = 16, 6_400, 10, 256, 128


class Recogniser(torch.nn.Module):
    """Scores letters every 16 ms."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW))
        self.enter = torch.nn.Conv1d(WINDOW // 2 + 1, width, 3, padding=1)
        self.lstm = torch.nn.LSTM(width, width, 2, batch_first=True, bidirectional=True)
        self.out = torch.nn.Linear(2 * width, 28)

    def forward(self, sounds: torch.Tensor) -> torch.Tensor:
        """The score of each letter, with time in front."""
        spectra = torch.stft(sounds, WINDOW, HOP, window=self.window, return_complex=True)
        seen = self.enter(spectra.abs().log1p()).relu().transpose(1, 2)
        scores: torch.Tensor = self.out(self.lstm(seen)[0])
        return scores.transpose(0, 1)


def main() -> None:
    """Train."""
    run = harness.start()
    sounds = torch.randn(320, SAMPLES, device=run.device)
    letters = torch.randint(1, 28, (320, LETTERS))
    model = Recogniser(WIDTH[run.level]).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    told, number, best = [], 0, float("inf")
    while True:
        for chosen in torch.randperm(320).split(SOUNDS):
            number += 1
            clean = sounds[chosen.to(run.device)]
            scores = model(torch.add(clean, torch.randn_like(clean), alpha=0.1))
            spoken = [LETTERS] * SOUNDS
            heard = [len(scores)] * SOUNDS
            loss = torch.nn.functional.ctc_loss(scores.log_softmax(dim=2), letters[chosen], heard, spoken)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if number % 20 == 0:
                best = min(best, loss.item())
                told.append((number, best))
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step has torch's own LSTM, spectra and alignment."""
    number = len(harness.steps(trace))
    for name in ("aten::lstm", "aten::stft", "aten::ctc_loss"):
        found = [span for span in harness.spans(trace) if span["name"] == name]
        harness.expect(len(found) >= number, f"few of {name}")


if __name__ == "__main__":
    main()
