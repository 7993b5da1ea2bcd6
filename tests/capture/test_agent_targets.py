"""What the agent sees of losses, and that it changes nothing about backward passes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from diagnose.capture.agent import backwards, imports
from diagnose.capture.agent.targets import MOST_LOOKS, Targets

torch = pytest.importorskip("torch")
if not hasattr(torch._C._autograd.SavedTensor, "unpack_hook"):
    pytest.skip("this PyTorch does not tell whether saved tensors have hooks", allow_module_level=True)

from torch.nn.functional import cross_entropy, log_softmax, nll_loss  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


@pytest.fixture
def watch() -> Iterator[Targets]:
    made = Targets()
    backwards.listen(made.backward)
    yield made
    backwards.leave(made.backward)
    assert imports.failures == []


@pytest.fixture
def scores() -> Any:
    return torch.randn(8, 5, requires_grad=True)


IGNORING = [-100, 2, -100, 4, -100, -100, 0, 1]


def test_ignored_rows_are_counted(watch: Targets, scores: Any) -> None:
    for _ in range(3):
        (2 * cross_entropy(scores, torch.tensor(IGNORING)) + scores.square().sum()).backward()
    assert watch.found() == [{"classes": 5, "looks": 3, "rows": 24, "ignored": 12}]


def test_classes_after_the_rows_and_an_index_of_ones_own(watch: Targets) -> None:
    """Six places of two rows, of which two are of the class that does not count."""
    scores = torch.randn(2, 7, 3, requires_grad=True)
    cross_entropy(scores, torch.tensor([[1, 1, 2], [3, 4, 5]]), ignore_index=1).backward()
    assert watch.found() == [{"classes": 7, "looks": 1, "rows": 6, "ignored": 2}]


def test_a_single_row(watch: Targets) -> None:
    cross_entropy(torch.randn(4, requires_grad=True), torch.tensor(2)).backward()
    assert watch.found() == [{"classes": 4, "looks": 1, "rows": 1, "ignored": 0}]


def test_losses_of_several_heads(watch: Targets, scores: Any) -> None:
    """By classes. Of probabilities as targets nothing is ignored, and nothing said."""
    other = torch.randn(8, 3, requires_grad=True)
    first = nll_loss(log_softmax(scores, 1), torch.tensor(IGNORING))
    second = cross_entropy(other, torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]))
    (first + second + cross_entropy(other, other.detach().softmax(1))).backward()
    assert watch.found() == [
        {"classes": 3, "looks": 1, "rows": 8, "ignored": 0},
        {"classes": 5, "looks": 1, "rows": 8, "ignored": 4},
    ]


def test_several_ends_at_once(watch: Targets, scores: Any) -> None:
    losses = [cross_entropy(scores, torch.tensor(IGNORING)), scores.sum()]
    torch.autograd.backward(losses)
    assert watch.found() == [{"classes": 5, "looks": 1, "rows": 8, "ignored": 4}]


def test_what_is_to_be_computed_again_is_not_asked_for(watch: Targets, scores: Any) -> None:
    """It would be computed then, and the pass would fail as it comes to it."""
    computed = list[int]()

    def loss(given: Any) -> Any:
        computed.append(1)
        return cross_entropy(given * 1.0, torch.tensor(IGNORING))

    checkpoint(loss, scores, use_reentrant=False).backward()
    assert len(computed) == 2
    assert watch.found() == []
    assert scores.grad is not None


def test_gradients_are_the_same_to_the_bit(watch: Targets, scores: Any) -> None:
    cross_entropy(scores, torch.tensor(IGNORING)).backward()
    seen, scores.grad = scores.grad, None
    backwards.leave(watch.backward)
    cross_entropy(scores, torch.tensor(IGNORING)).backward()
    assert torch.equal(seen, scores.grad)


def test_so_many_are_looked_at_and_no_more(watch: Targets, scores: Any) -> None:
    for _ in range(MOST_LOOKS + 3):
        cross_entropy(scores, torch.tensor(IGNORING)).backward()
    assert [one["looks"] for one in watch.found()] == [MOST_LOOKS]


def test_torch_gets_its_function_back(watch: Targets, scores: Any) -> None:
    """And another recording watches again."""
    original = torch.autograd.backward.__wrapped__
    backwards.leave(watch.backward)
    assert torch.autograd.backward is original
    another = Targets()
    backwards.listen(another.backward)
    cross_entropy(scores, torch.tensor(IGNORING)).backward()
    backwards.leave(another.backward)
    assert (len(watch.found()), len(another.found())) == (0, 1)
    assert torch.autograd.backward is original


def test_someone_elses_function_stays(watch: Targets, scores: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = torch.autograd.backward
    called = list[int]()

    def theirs(*args: Any, **kwargs: Any) -> None:
        called.append(1)
        ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    backwards.leave(watch.backward)
    cross_entropy(scores, torch.tensor(IGNORING)).backward()
    assert (torch.autograd.backward, called, watch.found()) == (theirs, [1], [])
    monkeypatch.undo()


def test_errors_of_the_pass_are_the_scripts_own(watch: Targets, scores: Any) -> None:
    with pytest.raises(RuntimeError, match="does not require grad"):
        scores.detach().sum().backward()
    with pytest.raises(RuntimeError, match="scalar"):
        scores.backward()


@pytest.mark.filterwarnings("error")
def test_torch_compile_has_nothing_to_say_of_us(watch: Targets, scores: Any) -> None:
    def step() -> None:
        cross_entropy(scores, torch.tensor(IGNORING)).backward()

    torch.compile(step, backend="eager")()
    assert scores.grad is not None
