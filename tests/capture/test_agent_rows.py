"""What the agent tells of the rows of a tensor alone."""

from __future__ import annotations

from typing import Any

import pytest

from diagnose.capture.agent.rows import Rows

torch = pytest.importorskip("torch")

LINE, OTHER = torch.tensor([0.1, 0.5, -1.0, 0.4, 0.2]), torch.tensor([1.0, 2.0, 3.0, 2.0, 1.0])


def windows(columns: Any, rows: Any) -> Any:
    """Of the shape of both, without the last dimension, by columns and rows."""
    return columns[..., :, None] * rows[..., None, :]


def is_separable(filters: Any) -> bool:
    return Rows(torch).separable(filters)


def test_rows_that_differ_in_few_places() -> None:
    """Bags of words: each has three of a thousand, none of them in a column that is looked at first."""
    bags = torch.zeros(200, 1000)
    for at in range(200):
        bags[at, torch.tensor([1, 17 + 16 * (at % 50), 500 + at])] = 1
    assert Rows(torch).alike(bags, False, None) == 0
    assert Rows(torch).alike(torch.cat((bags, bags[:100])), False, None) == 33


def test_most_rows_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.capture.agent.rows.MOST_NUMBERS", 5_000)
    rows = torch.randn(100, 400)
    assert Rows(torch).alike(rows.repeat(3, 1), False, None) == 66


def test_one_column_for_all_inputs_of_a_result() -> None:
    """Rows go first, and make as many images as there are results; or one row for each image that goes in."""
    columns, rows = torch.randn(4, 1, 5), torch.randn(4, 3, 5)
    assert is_separable(windows(columns, rows))
    assert is_separable(windows(torch.randn(4, 3, 5), torch.randn(1, 3, 5)))
    assert is_separable(windows(columns * torch.tensor([2.0, -3.0, 0.5])[:, None], rows))
    assert not is_separable(windows(torch.randn(4, 3, 5), rows))


def test_one_image_that_goes_in() -> None:
    assert is_separable(windows(torch.randn(4, 1, 5), torch.randn(4, 1, 5)))


def test_windows_for_some_images_only() -> None:
    """A blur of each color, as a convolution of all."""
    blur = windows(LINE, LINE) * torch.eye(3)[:, :, None, None]
    assert is_separable(blur)
    assert not is_separable(blur + windows(OTHER, OTHER) * (1 - torch.eye(3))[:, :, None, None])
    assert not is_separable(torch.zeros(3, 3, 5, 5))


def test_windows_that_cut_out_points_are_none() -> None:
    """Each has a single one: nothing is slid."""
    assert not is_separable(torch.eye(25).view(25, 1, 5, 5))


def test_kinds_that_torch_cannot_count_count_for_nothing() -> None:
    short = torch.ones(100, 100, dtype=torch.uint16)
    with pytest.raises(RuntimeError):
        torch.count_nonzero(short)
    assert Rows(torch).zeros(short) == 0
