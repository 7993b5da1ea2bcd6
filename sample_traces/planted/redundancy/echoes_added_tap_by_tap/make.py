"""A speech classifier that learns in rooms: each batch is given the echoes of a room drawn for it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import conv1d, pad

from sample_traces import harness

TAPS = {"weak": 220, "medium": 420, "strong": 800}
"""Of a room's response to a clap."""
SOUNDS, SAMPLES = 8, 8_000


def in_room(sounds: torch.Tensor, clap: torch.Tensor, spectral: bool) -> torch.Tensor:
    """What is heard of the sounds in a room."""
    if spectral:
        size = 1 << (SAMPLES + len(clap) - 1).bit_length()
        heard = torch.fft.irfft(torch.fft.rfft(sounds, size) * torch.fft.rfft(clap, size), size)
        return heard[:, :SAMPLES]
    padded = pad(sounds[:, None], (len(clap) - 1, 0))
    return conv1d(padded, clap.flip(0)[None, None])[:, 0]


def main() -> None:
    """Train."""
    run = harness.start()
    taps = TAPS[run.level]
    sounds = torch.randn(256, SAMPLES, device=run.device)
    labels = torch.randint(12, (256,), device=run.device)
    fading = torch.exp(-5 * torch.arange(taps, device=run.device) / taps)
    rooms = torch.nn.functional.normalize(torch.randn(20, taps, device=run.device) * fading, dim=1)
    model = torch.nn.Sequential(
        torch.nn.Conv1d(1, 48, 80, stride=16),
        torch.nn.ReLU(),
        torch.nn.Conv1d(48, 64, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.Conv1d(64, 96, 5, stride=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool1d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 12),
    ).to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    number = 0
    while True:
        for chosen in torch.randperm(256, device=run.device).split(SOUNDS):
            number += 1
            heard = in_room(sounds[chosen], rooms[number % 20], run.fixed)
            loss = torch.nn.functional.cross_entropy(model(heard[:, None]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step's first convolution has a long kernel; there is no Fourier transform."""
    convolutions = [span for span in harness.spans(trace) if span["name"] == "aten::conv1d"]
    harness.expect(len(convolutions) >= 4 * len(harness.steps(trace)), "the rooms are no convolutions")
    harness.expect(not harness.named(trace, "aten::fft_"), "there is a Fourier transform")


if __name__ == "__main__":
    main()
