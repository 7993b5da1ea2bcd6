"""The tensors that ops took: their shapes, types and sizes, and ops by name."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.names import name_codes
from diagnose.trace.intervals import IntArray

Mask = npt.NDArray[np.bool_]


NO_SHAPES = Missing("shapes", "Record with record_shapes=True.")


UNKNOWN = -1


_SIZES = {"double": 8, "long int": 8, "float": 4, "int": 4, "c10::complex<float>": 8, "short int": 2, "bool": 1}


_SIZES |= {"c10::BFloat16": 2, "c10::Half": 2, "unsigned char": 1, "signed char": 1}


_SIZES |= {f"c10::Float8_{kind}": 1 for kind in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz", "e8m0fnu")}


_ESCAPED = re.compile(r"\\[nrt]")  # White space of indented JSON, as the reader keeps it.
_MOST, _MOST_ELEMENTS = 64, 2**44  # Dimensions of a tensor, tensors, inputs; more than a device holds: sums fit int64.


class Tensor(NamedTuple):
    """A tensor that was an op's input."""

    shape: tuple[int, ...]
    dtype: str  # As torch writes it; "" if not recorded.

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Its size; None if its type is not known."""
        size = _SIZES.get(self.dtype)
        return size * self.elements if size else None


Inputs = tuple[tuple[Tensor, ...], ...]
"""The inputs of a call: of a tensor one, of a list of tensors all; of what is no tensor, or was not recorded, none."""


def recorded_inputs(facts: Facts, ops: IntArray) -> tuple[IntArray, list[Inputs]]:
    """The inputs of ops: for each op its position in the list of distinct inputs, or -1. Shape (ops,).

    Ops that are -1 or whose shapes were not recorded have none. Lists of more than 30 tensors are recorded empty
    (torch's TENSOR_LIST_DISPLAY_LENGTH_LIMIT), and so are single numbers in recordings without types.
    """
    table = facts.rank.ops
    if not len(table):
        return np.full(len(ops), UNKNOWN, dtype=np.int64), []
    row = table.index.get_indexer(pd.Index(ops))
    shapes, dtypes = table["shapes"].cat, table["dtypes"].cat
    keys = shapes.codes.to_numpy()[row].astype(np.int64) * len(dtypes.categories) + dtypes.codes.to_numpy()[row]
    distinct, position = np.unique(np.where(row < 0, UNKNOWN, keys), return_inverse=True)
    pairs = [divmod(key, len(dtypes.categories)) for key in distinct.tolist()]
    sizes, types = shapes.categories.tolist(), dtypes.categories.tolist()
    texts = [(sizes[a], types[b]) if a >= 0 else ("", "") for a, b in pairs]
    known = np.array([bool(shape) for shape, _ in texts], dtype=bool)
    return np.where(known[position], position, UNKNOWN), [inputs_read(*text) for text in texts]


@lru_cache(4096)
def inputs_read(shapes: str, dtypes: str) -> Inputs:
    """The inputs that these texts of the table `ops` tell."""
    sizes, types = _list(shapes), _list(dtypes)
    named = [type_ if isinstance(type_, str) else "" for type_ in types] + [""] * max(len(sizes) - len(types), 0)
    return tuple(tuple(_tensors(size, dtype)) for size, dtype in zip(sizes[:_MOST], named, strict=False))


def _list(text: str) -> list[object]:
    try:
        value = json.loads(_ESCAPED.sub(" ", text)) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _tensors(size: object, dtype: str) -> Iterator[Tensor]:
    """The tensors of one input. An empty size is a tensor of one element where the type says that it is a tensor."""
    if not isinstance(size, list) or (not size and dtype not in _SIZES):
        return
    for one in size[:_MOST] if size and isinstance(size[0], list) else [size]:
        shape = tuple(n for n in one if type(n) is int and n >= 0) if isinstance(one, list) else ()
        whole = isinstance(one, list) and len(shape) == len(one) <= _MOST
        if whole and prod(shape) <= _MOST_ELEMENTS:
            yield Tensor(shape, "" if dtype == "TensorList" else dtype)


def named(facts: Facts, ids: IntArray, *wanted: str) -> Mask:
    """Which of these spans (-1: none) have one of the names, or one that begins with it if it ends in `*`."""
    exact = {name for name in wanted if not name.endswith("*")}
    heads = tuple(name[:-1] for name in wanted if name.endswith("*"))
    names = facts.rank.spans["name"].cat.categories
    accepted = np.array([*(name in exact or name.startswith(heads) for name in names), False], dtype=bool)
    return accepted[name_codes(facts, ids)]


def known_per_step(amounts: IntArray, count: int) -> int | None:
    """Their sum per step; None if one of them is negative, which is unknown."""
    return round_half_up(int(amounts.sum()), count) if (amounts >= 0).all() else None
