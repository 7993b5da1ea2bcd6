"""Batches one ahead, without a GPU to copy them to."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from diagnose.capture.agent.injection import Injection
from diagnose.fixes.loaders import OF_ITERABLE, SHARES, LoaderArgument
from diagnose.fixes.prefetching import OneAhead, _Copied, mapped

Pair = namedtuple("Pair", "rows labels")


def ahead(loader: DataLoader[Any], log: list[str]) -> OneAhead:
    def copied(batch: Any) -> _Copied:
        log.append(f"copy {batch.tolist()}")
        return _Copied(batch, None, [])

    def ready(some: _Copied) -> Any:
        log.append(f"give {some.batch.tolist()}")
        return some.batch

    return OneAhead(copied, ready)


def test_batches_are_asked_for_one_ahead_in_order_and_end_as_without() -> None:
    log = list[str]()
    iterator = iter(DataLoader(range(5), batch_size=2))  # type: ignore[arg-type]
    one = ahead(iterator, log)  # type: ignore[arg-type]
    given = [one.next(lambda: next(iterator)).tolist() for _ in range(3)]
    assert given == [[0, 1], [2, 3], [4]]
    assert log == ["copy [0, 1]", "copy [2, 3]", "give [0, 1]", "copy [4]", "give [2, 3]", "give [4]"]
    for _ in range(2):
        with pytest.raises(StopIteration):
            one.next(lambda: next(iterator))


def test_no_batch_at_all_ends_at_once() -> None:
    iterator = iter(DataLoader([], batch_size=2))  # type: ignore[arg-type]
    with pytest.raises(StopIteration):
        ahead(iterator, []).next(lambda: next(iterator))  # type: ignore[arg-type]


def test_an_error_of_the_dataset_gets_through() -> None:
    iterator = iter(DataLoader([1, "a"], batch_size=1, collate_fn=lambda some: torch.tensor(some)))  # type: ignore[arg-type]
    one = ahead(iterator, [])  # type: ignore[arg-type]
    assert one.next(lambda: next(iterator)).tolist() == [1]
    with pytest.raises((ValueError, TypeError)):
        one.next(lambda: next(iterator))


def test_tensors_of_a_batch_are_changed_and_the_rest_is_kept() -> None:
    one, odd = torch.ones(2), {1, 2}
    batch = {"a": one, "b": [one, "text"], "c": Pair(one, (one, 3)), "d": odd}
    found = mapped(batch, lambda tensor: tensor + 1, torch.Tensor)
    assert str(found) == str({"a": one + 1, "b": [one + 1, "text"], "c": Pair(one + 1, (one + 1, 3)), "d": odd})
    assert found["d"] is odd


class Lines(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


def test_an_iterable_dataset_gets_no_workers_which_would_each_give_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DataLoader, "__init__", DataLoader.__init__)  # Put back after the test.
    setting = LoaderArgument("num_workers", 2)
    injection = Injection(setting)
    setting.inject(injection)
    lines = DataLoader(Lines())
    assert (lines.num_workers, type(lines.sampler).__name__) == (0, OF_ITERABLE)
    assert injection.found() == ([], SHARES)
    assert DataLoader([1, 2]).num_workers == 2  # type: ignore[arg-type]
