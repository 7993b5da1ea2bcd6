"""A compiled transformer with fused attention and a fused optimizer trains in bf16, and nothing is wrong."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

SEQUENCES = {"weak": 4, "medium": 8, "strong": 16}
HEADS, LAYERS = 16, 2


class Layer(torch.nn.Module):  # type: ignore[misc]
    """Attention and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.project_in = torch.nn.Linear(width, 3 * width, bias=False)
        self.project_out = torch.nn.Linear(width, width, bias=False)
        self.widen = torch.nn.Linear(width, 4 * width, bias=False)
        self.narrow = torch.nn.Linear(4 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of (batch, length, width)."""
        batch, length, width = x.shape
        qkv = self.project_in(self.norm_1(x)).view(batch, length, 3, HEADS, width // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(torch.nn.functional.gelu(self.widen(self.norm_2(x))))


def main() -> None:
    """Train."""
    run = harness.start()
    small = run.device.type == "cpu"
    width, batch, length = (64, 2, 16) if small else (2048, SEQUENCES[run.level], 1024)
    with run.device:
        model = torch.nn.Sequential(*[Layer(width) for _ in range(LAYERS)])
        inputs = torch.randn(batch, length, width)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            loss = compiled(inputs).square().mean()
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """What runs was compiled, and attention is fused."""
    steps = len(harness.steps(trace))
    harness.expect(len(harness.named(trace, "Torch-Compiled Region")) >= steps, "nothing was compiled")
    kernels = [span for span in harness.spans(trace) if span.get("cat") == "kernel"]
    harness.expect(sum(span["name"].startswith("triton_") for span in kernels) >= steps, "no compiled kernels")
    harness.expect(not harness.named(trace, "aten::_softmax"), "attention is not fused")


if __name__ == "__main__":
    main()
