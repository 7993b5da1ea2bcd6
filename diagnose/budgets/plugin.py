"""The plugin of pytest, which loads it by the entry point `pytest11`. It imports nothing before a test asks for it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from diagnose.budgets.context import Budget

OPTION = "--diagnose-budget"
MARK = "diagnose"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Called by pytest."""
    parser.getgroup(MARK, "budgets of trainings").addoption(
        OPTION, metavar="BUDGET", help="limits of tests that are marked diagnose, as in step=50ms,idle=10%%"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Called by pytest. Raises UsageError."""
    config.addinivalue_line("markers", f"{MARK}(step, idle, steps, warmup): its training is held to a budget")
    _asked(config)


def _asked(config: pytest.Config) -> dict[str, str]:
    """The limits of the command line, by name."""
    text = config.getoption(OPTION)
    if text is None:
        return {}
    from diagnose.budgets.limits import named

    try:
        return named(text)
    except ValueError as error:
        raise pytest.UsageError(f"{OPTION}: {error}") from error


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Called by pytest: a test that is marked runs within its budget, if it has any."""
    mark = item.get_closest_marker(MARK)
    wanted: dict[str, Any] = {} if mark is None else {**_asked(item.config), **mark.kwargs}
    if mark is None or not wanted.keys() & {"step", "idle"}:
        return (yield)
    __tracebackhide__ = True
    from diagnose.budgets.context import budget

    with budget(**wanted):
        return (yield)


@pytest.fixture
def diagnose_budget(pytestconfig: pytest.Config, tmp_path: Path) -> Callable[..., Budget]:
    """`diagnose.budget` that records into the test's folder; the command line's limits hold where none is given."""
    from diagnose.budgets.context import budget

    numbers = count()

    def in_own_folder(**wanted: Any) -> Budget:
        folder = tmp_path / f"diagnose-{next(numbers)}"
        return budget(**{"folder": folder, **_asked(pytestconfig), **wanted})

    return in_own_folder
