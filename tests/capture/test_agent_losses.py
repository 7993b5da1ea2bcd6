"""Numbers that the agent keeps of backward passes: exact, in order, and without memory of their own for each step."""

import ctypes
import math

import pytest
import torch

from diagnose.capture.agent.backwards import MOST, Losses


def kept(*some: torch.Tensor) -> list[float]:
    losses = Losses()
    for one in some:
        losses.keep(one)
    return [float.fromhex(one) for one in losses.found()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_numbers_are_exact_whatever_their_type(dtype: torch.dtype) -> None:
    one, other = torch.tensor(1 / 3, dtype=dtype, requires_grad=True), torch.tensor([2.5e-5], dtype=dtype)
    assert kept(one, other) == [one.item(), other.item()]


def test_what_changes_later_does_not_count() -> None:
    losses, loss = Losses(), torch.tensor(1.0)
    losses.keep(loss)
    loss += 1
    assert losses.found() == [(1.0).hex()]


def test_infinite_ones_are_kept_and_whole_numbers_are_not() -> None:
    found = kept(torch.tensor(math.nan), torch.tensor(-math.inf), torch.tensor(3))
    assert math.isnan(found[0])
    assert found[1:] == [-math.inf]


def test_there_is_an_end() -> None:
    assert len(kept(*[torch.tensor(1.0)] * (MOST + 1))) == MOST


class Heap(ctypes.Structure):
    """`mallinfo2` of glibc 2.33 and later."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ]
    _fields_ += [("keepcost", ctypes.c_size_t)]


def in_use_bytes() -> int:
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):
        pytest.skip("this libc does not tell")
    library.mallinfo2.restype = Heap
    return int(library.mallinfo2().uordblks)


def test_a_step_leaves_nothing_on_the_heap() -> None:
    """A small block on top of large ones keeps glibc from giving these back: steps would get faster."""
    losses, one = Losses(), torch.tensor(1.0)
    for _ in range(100):
        losses.keep(one)
    before = in_use_bytes()
    for _ in range(1000):
        losses.keep(one)
    assert in_use_bytes() - before < 50_000
