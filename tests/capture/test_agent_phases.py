"""Time by phase: exclusive, of one thread, and only while it is asked for."""

import gc
import itertools
import threading

import pytest

from diagnose.capture.agent import phases as module
from diagnose.capture.agent.phases import (
    BACKWARD,
    COLLECTION,
    COMPILATION,
    FORWARD,
    LOADER,
    OPTIMIZER,
    SAVE,
    Phases,
)

torch = pytest.importorskip("torch")


@pytest.fixture
def some(monkeypatch: pytest.MonkeyPatch) -> Phases:
    """With a clock that goes on by 1 at each look."""
    ticks = itertools.count()
    monkeypatch.setattr(module.time, "perf_counter_ns", lambda: next(ticks))
    made = Phases()
    made.on()
    yield made
    made.off()


def test_what_is_within_another_counts_for_itself(some: Phases) -> None:
    assert some.begin(OPTIMIZER)  # 0
    assert some.begin(BACKWARD)  # 1
    assert some.begin(COLLECTION)  # 2
    some.end(COLLECTION)  # 3
    some.end(BACKWARD)  # 4
    some.end(OPTIMIZER)  # 5
    assert some.spent_ns() == {LOADER: 0, BACKWARD: 2, OPTIMIZER: 2, SAVE: 0, COLLECTION: 1, FORWARD: 0, COMPILATION: 0}


def test_what_is_open_counts_up_to_now(some: Phases) -> None:
    some.begin(LOADER)
    assert some.spent_ns()[LOADER] == 1
    some.end(LOADER)
    assert some.spent_ns()[LOADER] == 2


def test_an_end_ends_what_an_error_left_open(some: Phases) -> None:
    some.begin(OPTIMIZER)
    some.begin(BACKWARD)
    some.end(OPTIMIZER)
    some.begin(LOADER)
    some.end(LOADER)
    assert some.spent_ns() == {LOADER: 1, BACKWARD: 1, OPTIMIZER: 1, SAVE: 0, COLLECTION: 0, FORWARD: 0, COMPILATION: 0}


def test_other_threads_do_not_count(some: Phases) -> None:
    counted = list[bool]()
    thread = threading.Thread(target=lambda: counted.append(some.begin(LOADER)))
    thread.start()
    thread.join()
    assert counted == [False]


def test_backward_passes_and_collections_are_told_while_it_is_on() -> None:
    own, before = torch.autograd.backward, len(gc.callbacks)
    some = Phases()
    some.on()
    weight = torch.ones(2, requires_grad=True)
    (weight * 2).sum().backward()
    gc.collect()
    found = some.spent_ns()
    assert found[BACKWARD] > 0
    assert found[COLLECTION] > 0
    assert found[OPTIMIZER] == 0
    some.off()
    assert torch.autograd.backward is own
    assert len(gc.callbacks) == before
    assert not some.begin(LOADER)
