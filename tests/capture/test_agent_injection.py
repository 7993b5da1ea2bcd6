"""What an injection says of a DataLoader that it cannot change."""

from collections.abc import Iterator

import pytest
from torch.utils.data import DataLoader, IterableDataset

from diagnose.capture.agent.injection import Injection
from diagnose.fixes.loaders import OF_ITERABLE, SHARES, LoaderArgument


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
