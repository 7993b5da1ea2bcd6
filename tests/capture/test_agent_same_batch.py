"""Numbers of the same batch, without and with a setting: what is compared, and that nothing of it stays."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from diagnose.capture.agent.arm import Called, Difference, SameBatch, update_compared
from diagnose.fixes.interfaces import Switch
from diagnose.fixes.optimizers import OptimizerArgument

ROWS = 32


class Net(torch.nn.Module):
    """Draws random numbers, counts in a buffer, and gives a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)
        self.scale = 1.0

    def forward(self, rows: torch.Tensor, *, shift: float) -> dict[str, torch.Tensor]:
        made = self.drop(self.norm(self.layer(rows))) * self.scale + shift
        return {"logits": made, "words": torch.arange(3)}


def batch_of(model: torch.nn.Module, **given: Any) -> SameBatch:
    made = SameBatch(model)
    model(torch.randn(ROWS, 8), **given)
    assert made.close()
    return made


def scaling(model: Net, factor: float) -> Callable[[bool], None]:
    def turn(on: bool) -> None:
        model.scale = factor if on else 1.0

    return turn


def test_the_largest_module_that_is_called_with_gradients_is_found() -> None:
    small, large = torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
    evaluated = torch.nn.Linear(100, 100)
    called = Called()
    small(torch.randn(1, 2))
    large(torch.randn(1, 8))
    with torch.no_grad():
        evaluated(torch.randn(1, 100))
    assert called.largest() is large
    assert Called().largest() is None


@pytest.mark.parametrize(
    ("factor", "kind"), [(1.0, "same"), (1.0 + 2**-22, "rounding"), (1.01, "differ"), (float("nan"), "differ")]
)
def test_outputs_are_compared_by_their_spread(factor: float, kind: str) -> None:
    """Without a shift their mean is about 0, so that one of 1 % is one of about 1 % of the spread, or less."""
    torch.manual_seed(0)
    model = Net()
    found = batch_of(model, shift=0.0).compared(scaling(model, factor))
    assert found.kind == kind
    if factor == 1.01:
        assert 0.002 < found.typical < 0.01 < found.largest < 0.1
    if kind == "same":
        assert found == Difference(0.0, 0.0, "same")


def test_asking_a_model_leaves_nothing() -> None:
    torch.manual_seed(0)
    model = Net()
    batch = batch_of(model, shift=1.0)
    random.seed(1)
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state, drawn = torch.get_rng_state(), random.getstate()
    batch.compared(scaling(model, 2.0))
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert random.getstate() == drawn
    assert model.training
    assert model.scale == 1.0
    assert all(one.grad is None for one in model.parameters())


def test_a_setting_that_fails_is_off_again() -> None:
    model = Net()
    batch = batch_of(model, shift=0.0)
    asked = list[bool]()

    def turn(on: bool) -> None:
        asked.append(on)
        model.forward = None if on else Net.forward.__get__(model)  # type: ignore[assignment, method-assign]

    with pytest.raises(TypeError):
        batch.compared(turn)
    assert asked == [True, False]


def trained(kind: type[torch.optim.Optimizer], **options: Any) -> torch.optim.Optimizer:
    """After three steps, with the gradients of the third."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Linear(64, 8))
    made = kind(model.parameters(), lr=1e-2, foreach=False, **options)  # type: ignore[call-arg]
    for _ in range(3):
        made.zero_grad()
        model(torch.randn(ROWS, 8)).square().mean().backward()
        made.step()
    return made


class Process:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self._optimizer]


def switch_of(optimizer: torch.optim.Optimizer, argument: str = "fused") -> Switch:
    made: Switch = OptimizerArgument(argument, True).switch(Process(optimizer))  # type: ignore[arg-type]
    return made


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (torch.optim.AdamW, {"weight_decay": 0.1}),
        (torch.optim.Adam, {"amsgrad": True}),
        (torch.optim.SGD, {"momentum": 0.9}),
        (torch.optim.Adagrad, {}),
    ],
)
def test_an_optimizer_is_asked_by_copies(kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    optimizer = trained(kind, **options)
    weights = [one for group in optimizer.param_groups for one in group["params"]]
    values, kept = [one.detach().clone() for one in weights], optimizer.state_dict()
    kept = {number: {name: one.clone() for name, one in state.items()} for number, state in kept["state"].items()}
    of_optimizer = switch_of(optimizer).of_optimizer
    found = update_compared([optimizer], of_optimizer) if of_optimizer is not None else None
    assert found.kind in ("same", "rounding")
    assert all(map(torch.equal, weights, values))
    for number, state in optimizer.state_dict()["state"].items():
        assert all(torch.equal(one, kept[number][name]) for name, one in state.items())
    assert not optimizer.param_groups[0]["fused"]

    def other_rate(made: Any, on: bool) -> None:
        made.param_groups[0]["lr"] *= 1.1

    found = update_compared([optimizer], other_rate)
    assert found.kind == "differ"
    assert 0.05 < found.typical < 0.2


def test_an_optimizer_without_gradients_is_not_asked() -> None:
    optimizer = trained(torch.optim.SGD)
    optimizer.zero_grad()
    assert update_compared([optimizer], lambda made, on: None) is None


@pytest.mark.parametrize("argument", ["fused", "foreach"])
def test_an_optimizer_is_turned_and_turned_back(argument: str) -> None:
    optimizer = trained(torch.optim.AdamW)
    switch = switch_of(optimizer, argument)
    assert switch.why_none() == f"the script sets {argument} of its optimizer back"
    switch.turn(True)
    assert (optimizer.param_groups[0][argument], switch.why_none()) == (True, "")
    optimizer.step()
    switch.turn(False)
    optimizer.step()
    assert (optimizer.param_groups[0]["fused"], optimizer.param_groups[0]["foreach"]) == (None, False)
