"""Tests of very many inputs: of some wherever slow tests run, of all by `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(every: Iterable[object], kept: Collection[object]) -> list[Any]:
    """Parameters of a test, those that are not kept marked as exhaustive."""
    cases = [(one, one if isinstance(one, tuple) else (one,)) for one in every]
    return [one if one in kept else pytest.param(*values, marks=pytest.mark.exhaustive) for one, values in cases]
