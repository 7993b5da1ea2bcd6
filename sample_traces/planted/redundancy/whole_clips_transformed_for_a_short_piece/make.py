"""A spectrogram is computed of whole clips, and a short piece of it is then cut out at random for the model."""

from __future__ import annotations

import random
from pathlib import Path

import torch

from sample_traces import harness

FRAMES = {"weak": 56, "medium": 110, "strong": 300}
CLIPS, BATCH, WINDOW, HOP, PIECE, WIDTH = 96, 16, 256, 128, 32, 96


def main() -> None:
    """Train."""
    run = harness.start()
    frames = FRAMES[run.level]
    chance = random.Random(harness.SEED)
    clips = torch.randn(CLIPS, WINDOW + (frames - 1) * HOP, device=run.device)
    labels = torch.randint(20, (CLIPS,), device=run.device)
    window = torch.hann_window(WINDOW, device=run.device)

    def spectrogram(sounds: torch.Tensor) -> torch.Tensor:
        waves = torch.stft(sounds, WINDOW, HOP, window=window, center=False, return_complex=True)
        return waves.abs().add(1e-5).log()

    model = torch.nn.Sequential(
        torch.nn.Conv1d(WINDOW // 2 + 1, WIDTH, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(WIDTH, 20),
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    while True:
        chosen = torch.randint(CLIPS, (BATCH,), device=run.device)
        first = chance.randrange(frames - PIECE + 1)
        if run.fixed:
            seen = spectrogram(clips[chosen, first * HOP : (first + PIECE - 1) * HOP + WINDOW])
        else:
            seen = spectrogram(clips[chosen])[:, :, first : first + PIECE]
        loss = torch.nn.functional.cross_entropy(model(seen), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step transforms more frames than the model sees."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    number = len(harness.steps(trace))
    found = [span for span in harness.spans(trace) if span["name"] == "aten::_fft_r2c"]
    harness.expect(len(found) >= number - 1, "no transforms")
    most = [max(span["args"]["Input Dims"][0][1:2]) for span in found]
    harness.expect(min(most) > PIECE, "no more frames are transformed than are seen")


if __name__ == "__main__":
    main()
