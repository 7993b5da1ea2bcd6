"""The ops of a recording by name, and the tensors that they took."""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.spans import HostSpans, host_spans, launched_in, members, sites_of
from diagnose.facts.core.steps import steps
from diagnose.trace import hardware, intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.hardware import Peaks
from diagnose.trace.intervals import IntArray


def name_codes(facts: Facts, ids: IntArray) -> IntArray:
    """The code of each span's name in the category `name` of `spans`; -1 where the id is -1. Shape (ids,)."""
    return np.where(ids >= 0, facts.rank.spans["name"].cat.codes.to_numpy()[ids], -1).astype(np.int64)


def name_of(facts: Facts, span: int) -> str:
    """A span's name; "" for -1."""
    return str(facts.rank.spans["name"].iloc[span]) if span >= 0 else ""


def op_column(facts: Facts, column: str, ids: IntArray) -> IntArray:
    """An integer column of the table `ops` at these span ids; -1 where it has no such row or value. Shape (ids,)."""
    return facts.rank.ops[column].reindex(ids, fill_value=-1).to_numpy().astype(np.int64)


def grouped(facts: Facts, calls: IntArray, *columns: IntArray) -> list[tuple[IntArray, Site | None]]:
    """(positions, line) of rows alike in all columns and in the user's line behind `calls`, their host calls or -1."""
    known = np.flatnonzero(calls >= 0)
    sites = dict(zip(known.tolist(), sites_of(facts, calls[known]), strict=True))
    number_of: dict[Site | None, int] = {}
    site = np.array([number_of.setdefault(sites.get(row), len(number_of)) for row in range(len(calls))], dtype=np.int64)
    keys, group = np.unique(np.stack([*columns, site]), axis=1, return_inverse=True)
    return [(rows, sites.get(int(rows[0]))) for rows in members(group.reshape(-1), keys.shape[1])]


BACKWARD = "autograd::engine::evaluate_function"  # Beginning of the ops that a backward pass consists of.
DDP_FORWARD = "DistributedDataParallel.forward"
NO_SHAPES = Missing("shapes", "Record with record_shapes=True.")
UNKNOWN = -1
Mask = npt.NDArray[np.bool_]

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


Shape = tuple[int, ...]
Inputs = tuple[tuple[Tensor, ...], ...]
"""By input of a call, in order, its tensors: one of a tensor, all of a list, () of a number or if not recorded."""


def recorded_inputs(facts: Facts, ops: IntArray) -> tuple[IntArray, list[Inputs]]:
    """For each op the position of its inputs in the list of distinct inputs, or -1, shape (ops,); and that list.

    -1: the id is -1, or its shapes were not recorded. Lists of more than 30 tensors are recorded empty
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
    """The inputs of an op by its texts in the columns `shapes` and `dtypes` of `ops`; () if they cannot be read."""
    sizes, types = _list(shapes), _list(dtypes)
    named = [type_ if isinstance(type_, str) else "" for type_ in types] + [""] * max(len(sizes) - len(types), 0)
    return tuple(tuple(_tensors(size, dtype)) for size, dtype in zip(sizes[:_MOST], named, strict=False))


def _list(text: str) -> list[object]:
    """The list that the JSON text holds; empty if it holds none or cannot be read."""
    try:
        value = json.loads(_ESCAPED.sub(" ", text)) if text else []
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def _tensors(size: object, dtype: str) -> Iterator[Tensor]:
    """The tensors of one input, but impossible ones. An empty size is one element if the type is of a tensor."""
    if not isinstance(size, list) or (not size and dtype not in _SIZES):
        return
    for one in size[:_MOST] if size and isinstance(size[0], list) else [size]:
        shape = tuple(n for n in one if type(n) is int and n >= 0) if isinstance(one, list) else ()
        whole = isinstance(one, list) and len(shape) == len(one) <= _MOST
        if whole and prod(shape) <= _MOST_ELEMENTS:
            yield Tensor(shape, "" if dtype == "TensorList" else dtype)


def named(facts: Facts, ids: IntArray, *wanted: str) -> Mask:
    """Whether each span (id -1: no) has one of the wanted names; `x*` stands for all names that begin with `x`."""
    exact = {name for name in wanted if not name.endswith("*")}
    heads = tuple(name[:-1] for name in wanted if name.endswith("*"))
    names = facts.rank.spans["name"].cat.categories
    accepted = np.array([*(name in exact or name.startswith(heads) for name in names), False], dtype=bool)
    return accepted[name_codes(facts, ids)]


def known_per_step(amounts: IntArray, count: int) -> int | None:
    """The sum of the amounts over `count` steps, per step; None if any of them is negative, that is unknown."""
    return round_half_up(int(amounts.sum()), count) if (amounts >= 0).all() else None


class Work(Struct, frozen=True):
    """Ops of the whole recording, none inside another, the device work launched in them, and the time of both."""

    ids: IntArray
    work_ids: IntArray
    data_ids: IntArray  # What gets shorter with less data: the device work, and those of the ops that launch none.
    host_ns: int  # Time in the ops, per step.
    device_ns: int  # Sum of durations of the device work, per step.

    @property
    def longest_ns(self) -> int:
        """The larger of both times."""
        return max(self.host_ns, self.device_ns)


def work_of(facts: Facts, ids: IntArray) -> Work:
    """The outermost of these ops and the device work launched in them, with the time of both in the used steps."""
    spans, count, work = host_spans(facts, SpanKind.OP), steps(facts).count, device_work(facts)
    spans = spans.where(np.isin(spans.ids, ids)).outermost()
    launched, used = launched_in(facts, spans), spans.in_steps(facts)
    in_steps = np.append(np.isin(spans.ids, used.ids), False)[launched]
    return Work(
        ids=spans.ids,
        work_ids=work.ids[launched >= 0],
        data_ids=np.concatenate((np.delete(spans.ids, launched[launched >= 0]), work.ids[launched >= 0])),
        host_ns=round_half_up(int((used.end_ns - used.start_ns).sum()), count),
        device_ns=round_half_up(int((work.end_ns - work.start_ns)[in_steps].sum()), count),
    )


@fact
def main_ops(facts: Facts) -> HostSpans:
    """The outermost ops of the main thread. Raises Missing without shapes, and like host_threads."""
    if not facts.rank.provenance.knows("shapes"):
        raise NO_SHAPES
    ops = host_spans(facts, SpanKind.OP)
    return ops.where(ops.track == host_threads(facts).main).outermost()


def inputs_of(facts: Facts, ids: IntArray) -> list[Inputs]:
    """The inputs of each op, in the order of `ids`; () where they were not recorded."""
    position, inputs = recorded_inputs(facts, ids)
    return [inputs[one] if one >= 0 else () for one in position.tolist()]


def first_shape(inputs: Inputs) -> Shape | None:
    """The shape of the first input, or of its first tensor if it is a list; None if it has no recorded tensor."""
    return inputs[0][0].shape if inputs and inputs[0] else None


def calls_alike(facts: Facts, ids: IntArray) -> IntArray:
    """A number per op, equal for ops of one name with inputs of equal shapes and types; -1 if these are unknown."""
    position, _ = recorded_inputs(facts, ids)
    _, number = np.unique(np.stack((position, name_codes(facts, ids))), axis=1, return_inverse=True)
    return np.where(position >= 0, number.reshape(-1), intervals.NONE)


SHORTEST_NS = 2_000  # The shortest useful kernel.


@fact
def peaks(facts: Facts) -> Peaks:
    """The peak rates of the device that did the work. Raises Missing if it is not known, or there are several kinds."""
    devices = facts.rank.provenance.devices
    known = {hardware.peaks(device) for device in devices}
    found = known.pop() if len(known) == 1 else None
    if found is None:
        name = devices[0].name if devices else "not recorded"
        how = "diagnose does not know this GPU." if len(known) == 1 else "GPUs of several kinds have no common rate."
        how = how if devices else "Record with a current PyTorch."
        raise Missing(f"peak rates of the GPU ({name})", how)
    return found


@fact
def type_rates(facts: Facts) -> Peaks:
    """The peak rates, or else those of the device's family: how types compare. Raises Missing like `peaks`."""
    devices = facts.rank.provenance.devices
    known = optional(peaks, facts)
    if known is not None or len({(device.name, device.multiprocessors) for device in devices}) > 1:
        return peaks(facts)
    names = map(str, facts.rank.spans["name"].cat.categories)
    return hardware.estimated(next(iter(devices), None), names) or peaks(facts)
