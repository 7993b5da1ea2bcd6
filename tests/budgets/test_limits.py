"""Limits as people write them."""

from __future__ import annotations

import pytest

from diagnose.budgets.limits import limits, named
from diagnose.contracts.budget import Limits


@pytest.mark.parametrize(
    ("text", "ns"), [("50ms", 50_000_000), ("1.5 s", 1_500_000_000), ("800us", 800_000), ("7ns", 7)]
)
def test_times(text: str, ns: int) -> None:
    assert limits(text, None) == Limits(step_ns=ns)


@pytest.mark.parametrize(("value", "share"), [(0.1, 0.1), ("10%", 0.1), ("0.25", 0.25), (0, 0.0), (1, 1.0)])
def test_shares(value: float | str, share: float) -> None:
    assert limits(None, value) == Limits(idle_share=share)


@pytest.mark.parametrize("text", ["50", "ms", "-5ms", "5 minutes", "", "1e3ms"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time such as 50ms"):
        limits(text, None)


@pytest.mark.parametrize("value", ["", "x", 1.1, -0.1, "110%", "nan"])
def test_what_is_no_share(value: float | str) -> None:
    with pytest.raises(ValueError, match="is not a share such as"):
        limits(None, value)


def test_one_limit_at_least() -> None:
    with pytest.raises(ValueError, match="Set a limit"):
        limits(None, None)


def test_named_limits() -> None:
    assert named("step=50ms,idle=10%") == {"step": "50ms", "idle": "10%"}
    assert named(" idle = 0.1 ") == {"idle": "0.1"}


@pytest.mark.parametrize("text", ["", "step", "memory=1GB", "step=1ms,step=2ms", "step=1ms,", "50ms"])
def test_what_is_no_budget(text: str) -> None:
    with pytest.raises(ValueError, match="is no budget such as"):
        named(text)


def test_a_limit_that_cannot_be_read_is_said_at_once() -> None:
    with pytest.raises(ValueError, match="'fast' is no time"):
        named("step=fast")
