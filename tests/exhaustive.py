"""Tests of very many inputs: of some wherever slow tests run, of all by `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def some_of(every: Iterable[object], kept: Collection[object]) -> list[Any]:
    """Parameters of a test, those that are not kept marked as exhaustive."""
    return [one if one in kept else pytest.param(one, marks=pytest.mark.exhaustive) for one in every]
