"""What the agent sees in batches: how far rows are filled."""

from typing import Any

import msgspec
import pytest

from diagnose.capture.agent.batches import MOST_LOOKS, Batches
from diagnose.trace.manifest import Loader, RowsFilled

torch = pytest.importorskip("torch")
pytest.importorskip("numpy")

LENGTHS = (3, 9, 12, 5)


def seen(*some: Any) -> Loader:
    batches = Batches()
    for one in some:
        batches.look(one)
    return msgspec.convert({"dataset": "Synthetic", **batches.found()}, Loader)


def texts(padding: int = 0, to: int = 16, at_end: bool = True) -> Any:
    """Rows of LENGTHS, of which no two words are the same."""
    batch = torch.full((len(LENGTHS), to), padding)
    for row, (own, length) in enumerate(zip(batch, LENGTHS, strict=True)):
        words = torch.arange(length) + 100 * (row + 1)
        if at_end:
            own[:length] = words
        else:
            own[to - length :] = words
    return batch


def filled(*some: Any) -> RowsFilled | None:
    return seen(*some).sequences


OF_TEXTS = RowsFilled(batches=1, rows=4, shortest=16, longest=16, places=64, to_longest=48, used=29)


@pytest.mark.parametrize(
    "batch",
    [
        texts(),
        texts(padding=7),
        texts(at_end=False),
        texts().T,
        (texts(), torch.arange(4)),
        {"input_ids": texts(), "attention_mask": texts() > 0, "labels": [torch.arange(4)]},
        [texts(), torch.zeros(4, 16, dtype=torch.int64)],
        texts().float()[:, :, None].expand(4, 16, 3),
        texts().to(torch.bfloat16)[:, :, None].repeat(1, 1, 2),
        texts().to(torch.int16),
    ],
)
def test_padding_is_seen_whatever_its_form(batch: Any) -> None:
    """12 of 16 places hold something in some row, and 3 + 9 + 12 + 5 in all."""
    assert filled(batch) == OF_TEXTS


def test_batches_add_up() -> None:
    assert filled(texts(), texts(to=12)) == RowsFilled(
        batches=2, rows=4, shortest=12, longest=16, places=112, to_longest=96, used=58
    )


def test_a_place_is_filled_if_any_tensor_has_something_there() -> None:
    targets = torch.arange(64).reshape(4, 16)
    assert filled([texts(), targets]) == msgspec.structs.replace(OF_TEXTS, to_longest=64, used=63)


@pytest.mark.parametrize(
    "batch",
    [
        torch.randn(4, 16),  # rows of features
        torch.randn(4, 3, 16, 16),  # images
        torch.arange(12).reshape(4, 3),  # too few for a sequence
        "text",
        None,
        {"path": ["a", "b"]},
        [],
    ],
)
def test_what_is_no_sequence(batch: Any) -> None:
    assert filled(batch) is None


def test_rows_that_are_full() -> None:
    """One word is taken for padding, as it is at the end as often as any other: a place of 64 at most."""
    found = filled(torch.arange(64).reshape(4, 16))
    assert (found.to_longest, found.used) == (64, 63)


def test_so_many_are_looked_at_and_no_more() -> None:
    found = seen(*[texts()] * (MOST_LOOKS + 3))
    assert found.looks == MOST_LOOKS


@pytest.mark.parametrize("batch", ["text", None, [], {"path": ["a", "b"]}, torch.zeros(3, 1 << 21, dtype=torch.int8)])
def test_what_could_not_be_looked_into_is_no_look(batch: Any) -> None:
    """Else it would be said that batches hold no sequences."""
    found = seen(batch, batch)
    assert (found.looks, found.sequences) == (0, None)


def test_a_batch_that_holds_itself() -> None:
    batch: list[Any] = [texts()]
    batch.append(batch)
    assert filled(batch) is not None


def test_a_batch_is_left_as_it_was() -> None:
    batch = texts()
    before = batch.clone()
    seen(batch, {"x": batch.T})
    assert torch.equal(batch, before)
