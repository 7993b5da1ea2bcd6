"""A few-shot learner ends in a ridge regression, solved for all features though a task has few examples."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

FEATURES = {"weak": 128, "medium": 224, "strong": 448}
TASKS, SHOWN, ASKED, WAYS, SENSED = 4, 25, 50, 5, 256


def ridge(examples: torch.Tensor, answers: torch.Tensor, amount: torch.Tensor, by_example: bool) -> torch.Tensor:
    """The weights of a linear regression of each task, features by ways."""
    turned = examples.mT
    if by_example:
        inner = examples @ turned + amount * torch.eye(examples.shape[1])
        return turned @ torch.linalg.solve(inner, answers)
    outer = turned @ examples + amount * torch.eye(examples.shape[2])
    return torch.linalg.solve(outer, turned @ answers)


def main() -> None:
    """Train."""
    run = harness.start()
    features = FEATURES[run.level]
    trunk = torch.nn.Sequential(
        torch.nn.Linear(SENSED, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, features),
    )
    log_amount = torch.nn.Parameter(torch.zeros(()))
    optimizer = torch.optim.Adam([*trunk.parameters(), log_amount], lr=1e-3, fused=True)
    rows = torch.randn(64, SHOWN + ASKED, SENSED)
    labels = torch.arange(SHOWN + ASKED).remainder(WAYS).expand(TASKS, -1)
    answers = torch.nn.functional.one_hot(labels[:, :SHOWN], WAYS).float()
    asked = labels[:, SHOWN:].flatten()
    while True:
        for chosen in torch.randperm(len(rows)).split(TASKS):
            optimizer.zero_grad()
            shown, query = trunk(rows[chosen]).split([SHOWN, ASKED], dim=1)
            weights = ridge(shown, answers, log_amount.exp(), by_example=run.fixed)
            torch.nn.functional.cross_entropy((query @ weights).flatten(0, 1), asked).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Systems of more equations are solved than a task has examples."""
    trace = trace.with_name("rank0.detail.json.gz")
    solved = [span for span in harness.spans(trace) if span["name"] == "aten::linalg_solve"]
    sizes = [span["args"]["Input Dims"][0][-1] for span in solved]
    harness.expect(len(sizes) >= len(harness.steps(trace)), "nothing is solved")
    harness.expect(min(sizes) > SHOWN, "the systems are as small as can be")


if __name__ == "__main__":
    main()
