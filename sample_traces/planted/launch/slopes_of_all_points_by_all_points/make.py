"""A physics-informed net of a rod that cools; both of its ends let no heat out."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.autograd import grad
from torch.autograd.functional import jacobian

from sample_traces import harness

ENDS = {"weak": 4, "medium": 11, "strong": 28}
"""Moments at which the ends are looked at."""
INSIDE, WIDTH = 2048, 64


def ends_slope(net: torch.nn.Module, ends: torch.Tensor, together: bool) -> torch.Tensor:
    """The heat's slope along the rod at each of its ends."""
    if together:
        ends.requires_grad_()
        return grad(net(ends).sum(), ends, create_graph=True)[0][:, 0]
    slopes = jacobian(net, ends, create_graph=True)
    return torch.einsum("iuid->id", slopes)[:, 0]


def residual(net: torch.nn.Module, points: torch.Tensor) -> torch.Tensor:
    """How far the net is from the heat equation."""
    points.requires_grad_()
    slope = grad(net(points).sum(), points, create_graph=True)[0]
    bend = grad(slope[:, 0].sum(), points, create_graph=True)[0]
    return slope[:, 1] - 0.1 * bend[:, 0]


def main() -> None:
    """Train."""
    run = harness.start()
    net = torch.nn.Sequential(
        torch.nn.Linear(2, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, WIDTH),
        torch.nn.Tanh(),
        torch.nn.Linear(WIDTH, 1),
    ).to(run.device)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.001, fused=True)
    number = ENDS[run.level]
    sides = torch.tensor([0.0, 1.0], device=run.device).repeat(number)
    at_first = torch.rand(256, 2, device=run.device) * torch.tensor([1.0, 0.0], device=run.device)
    heat = torch.cos(torch.pi * at_first[:, :1])
    while True:
        points = torch.rand(INSIDE, 2, device=run.device)
        ends = torch.stack((sides, torch.rand(2 * number, device=run.device)), dim=1)
        loss = residual(net, points).square().mean() + (net(at_first) - heat).square().mean()
        loss = loss + ends_slope(net, ends, run.fixed).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """The net is gone through backwards once for each point at the ends."""
    back = [span for span in harness.spans(trace) if span["name"] == "aten::tanh_backward"]
    harness.expect(len(back) >= 3 * (2 * min(ENDS.values()) + 4) * len(harness.steps(trace)), "few ways back")


if __name__ == "__main__":
    main()
