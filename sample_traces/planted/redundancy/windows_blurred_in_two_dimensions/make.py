"""A denoiser's loss compares the structure of images under a Gaussian window, which is a full square of weights."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WINDOW = {"weak": 5, "medium": 7, "strong": 11}
IMAGES, SIDE, BATCH, WIDTH = 128, 48, 4, 16
FIRST, SECOND = 0.01**2, 0.03**2


class Structure(torch.nn.Module):
    """How unlike two images of one channel are in structure (1 - SSIM)."""

    def __init__(self, size: int, square: bool) -> None:
        super().__init__()
        places = torch.arange(size) - size // 2
        line = torch.exp(-places.square() / (2 * 1.5**2))
        line = line / line.sum()
        self.register_buffer("line", line.view(1, 1, 1, size))
        self.register_buffer("window", torch.outer(line, line).view(1, 1, size, size))
        self.square = square

    def blur(self, maps: torch.Tensor) -> torch.Tensor:
        """Weighted means around each point."""
        if self.square:
            return torch.nn.functional.conv2d(maps, self.window)
        return torch.nn.functional.conv2d(torch.nn.functional.conv2d(maps, self.line), self.line.mT)

    def forward(self, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        """Of images (batch, 1, side, side)."""
        maps = torch.cat([one, other, one * one + other * other, one * other])
        mean, mean_other, squares, product = self.blur(maps).chunk(4)
        both, apart = mean * mean_other, mean * mean + mean_other * mean_other
        alike = (2 * both + FIRST) * (2 * (product - both) + SECOND)
        return 1 - (alike / ((apart + FIRST) * (squares - apart + SECOND))).mean()


def main() -> None:
    """Train."""
    run = harness.start()
    structure = Structure(WINDOW[run.level], not run.fixed).to(run.device)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, WIDTH, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(WIDTH, 1, 3, padding=1),
    ).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.001, fused=True)
    images = torch.rand(IMAGES, 1, SIDE, SIDE, device=run.device)
    while True:
        clean = images[torch.randint(IMAGES, (BATCH,), device=run.device)]
        cleaned = model(clean + 0.1 * torch.randn_like(clean))
        loss = structure(cleaned, clean) + 0.2 * torch.nn.functional.l1_loss(cleaned, clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step convolves maps of one channel with a square window."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    squares = [[1, 1, size, size] for size in WINDOW.values()]
    done = [s for s in harness.named(trace, "aten::conv2d") if s["args"].get("Input Dims", [[], []])[1] in squares]
    harness.expect(len(done) >= len(harness.steps(trace)) - 1, "no square window")


if __name__ == "__main__":
    main()
