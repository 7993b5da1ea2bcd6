"""Long convolutions go by Fourier transforms of just the length that is needed, which is a prime number."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 576, "medium": 256, "strong": 16}
LENGTH = {"weak": 252, "medium": 252, "strong": 4096}
BATCH, LEVELS, DEPTH = 2, 32, 1


class Block(torch.nn.Module):
    """A gated convolution as long as the sound."""

    def __init__(self, width: int, length: int, size: int) -> None:
        super().__init__()
        self.size = size
        self.norm = torch.nn.LayerNorm(width)
        self.enter, self.leave = torch.nn.Linear(width, 2 * width), torch.nn.Linear(width, width)
        fade = torch.exp(-torch.arange(length) / 100)
        self.kernel = torch.nn.Parameter(0.1 * torch.randn(width, length) * fade)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Convolve and gate."""
        content, gate = self.enter(self.norm(rows)).chunk(2, dim=-1)
        spectrum = torch.fft.rfft(content.transpose(1, 2), n=self.size) * torch.fft.rfft(self.kernel, n=self.size)
        heard = torch.fft.irfft(spectrum, n=self.size)[..., : rows.shape[1]]
        return rows + self.leave(heard.transpose(1, 2) * torch.nn.functional.silu(gate))


def main() -> None:
    """Train."""
    run = harness.start()
    width, length = WIDTH[run.level], LENGTH[run.level]
    size = 2 * length - 1
    if run.fixed:
        size = 1 << (size - 1).bit_length()
    model = torch.nn.Sequential(
        torch.nn.Embedding(LEVELS, width),
        *(Block(width, length, size) for _ in range(DEPTH)),
        torch.nn.Linear(width, LEVELS),
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    sounds = torch.randint(LEVELS, (256, length + 1), device=run.device)
    while True:
        sound = sounds[torch.randint(len(sounds), (BATCH,), device=run.device)]
        scores = model(sound[:, :-1])
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), sound[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every block transforms twice forward, and the length has no small divisors."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    transforms = [span for span in harness.spans(trace) if span["name"] == "aten::_fft_r2c"]
    harness.expect(len(transforms) >= 2 * DEPTH * (len(harness.steps(trace)) - 1), "few transforms")
    lengths = {span["args"]["Input Dims"][0][-1] for span in transforms}
    harness.expect(all(length % small for length in lengths for small in range(2, 50)), "the lengths are handy")


if __name__ == "__main__":
    main()
