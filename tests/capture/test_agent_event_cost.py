"""What one recorded event costs, measured within a training."""

import pytest

torch = pytest.importorskip("torch")

from diagnose.capture.agent import event_cost  # noqa: E402
from diagnose.capture.agent.foreign import turns  # noqa: E402


def test_measuring_what_an_event_costs_leaves_the_training_as_it_was() -> None:
    numbers, nodes = torch.get_rng_state(), torch._C._autograd._get_sequence_nr()
    found = event_cost.event_cost()
    assert found is not None
    assert (found["op_ns"] or 1.0) > 0.0
    assert found["call_ns"] is None or torch.cuda.is_initialized()
    assert torch.equal(torch.get_rng_state(), numbers)
    assert torch._C._autograd._get_sequence_nr() == nodes
    assert not torch.autograd._profiler_enabled()
    assert turns.take()
    turns.leave()


def test_it_is_not_measured_while_the_script_records_itself() -> None:
    profile = object()
    turns.give(profile)
    try:
        assert event_cost.event_cost() is None
    finally:
        turns.given_back(profile)


def test_what_fails_is_not_known_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> list[int]:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(event_cost, "_times_ns", failing)
    assert event_cost.event_cost() is None
    assert turns.take()
    turns.leave()
