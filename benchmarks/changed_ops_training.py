"""Small trainings on the CPU whose one fault is how ops compute: `python -m benchmarks.changed_ops_training NAME`.

They are of kinds that no planted case has. With `--fixed` the fault is not there.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from sample_traces import harness

CLASSES = 16


def convolutions() -> Any:
    """Tells the class of images of 3 x 48 x 48."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 24, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(24, 48, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(48, 48, 5, stride=2, padding=2, groups=2),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(48, CLASSES),
    )


class Attention(torch.nn.Module):  # type: ignore[misc]
    """Tells the class of sequences of 192 vectors of 64 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(64, 192), torch.nn.Linear(64, 64)
        self.head = torch.nn.Linear(64, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One score for each class."""
        q, k, v = (one.unflatten(-1, (4, 16)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores: torch.Tensor = self.head(self.out(seen.transpose(1, 2).flatten(2)).mean(1))
        return scores


def deep() -> Any:
    """Many layers of little work."""
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(128, 128), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers, torch.nn.Linear(128, CLASSES))


@dataclass(frozen=True)
class Training:
    """A model and what it is given, with a fault."""

    model: Callable[[], Any]
    shape: tuple[int, ...]  # Of its input.
    dtype: torch.dtype = torch.float32  # It computes in, instead of float32.
    optimizer: type[torch.optim.Optimizer] | None = None
    """Made with `foreach`, instead of its fused form; else SGD, which is not at fault."""
    foreach: bool = False


TRAININGS = {
    "convolutions_in_double": Training(convolutions, (8, 3, 48, 48), torch.float64),
    "attention_in_double": Training(Attention, (8, 192, 64), torch.float64),
    "adam_in_several_passes": Training(deep, (64, 128), optimizer=torch.optim.Adam, foreach=True),
    "adagrad_one_by_one": Training(deep, (64, 128), optimizer=torch.optim.Adagrad),
}


def _steps(one: Training, fixed: bool) -> Iterator[None]:
    dtype = torch.float32 if fixed else one.dtype
    model = one.model().to(dtype)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if one.optimizer is not None:
        how = {"fused": True} if fixed else {"foreach": one.foreach}
        optimizer = one.optimizer(model.parameters(), lr=1e-3, **how)
    x, labels = torch.rand(one.shape).to(dtype), torch.randint(CLASSES, one.shape[:1])
    while True:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        yield


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=TRAININGS)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--steps", type=int, default=200)
    given = parser.parse_args()
    harness.keep_memory()
    run = harness.joined("strong", given.steps, "cpu", frozenset() if given.fixed else None)
    for _ in _steps(TRAININGS[given.name], run.fixed):
        if run.stepped():
            return


if __name__ == "__main__":
    main()
