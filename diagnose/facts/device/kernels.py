"""Which kernels take the device's time, what are they, and which op asked for them?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact
from diagnose.facts.core.breakdown import NO_DEVICE, breakdown, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import enclosing_op
from diagnose.facts.core.steps import steps
from diagnose.trace import enums, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import KernelKind


class Kernel(Struct, frozen=True):
    """All device operations of one name."""

    name: str
    kind: KernelKind
    op: str  # The op that most of its time was launched from; "" if none is known.
    calls: int  # In all used steps.
    ns: int  # Sum of durations, per step.
    share: float  # `ns` over the step; over all kernels it may exceed 1 where streams run side by side.
    tensor_cores: bool | None
    dtype: str | None  # What a matmul-like kernel multiplies in.
    occupancy: float | None  # The recorder's estimate, weighted by time, 0..1; None if not recorded.


@fact
def kernels(facts: Facts) -> tuple[Kernel, ...]:
    """Kernels of the used steps by name, longest first. Raises Missing without device work."""
    frame, used = _in_steps(facts), steps(facts)
    step_ns = breakdown(facts).step_ns
    labels = facts.rank.spans["name"].cat.categories
    grouped = frame.groupby("name", sort=False)
    totals = grouped["dur"].agg(["size", "sum"])
    by_op = frame.groupby(["name", "op"], sort=False)["dur"].sum().sort_values().reset_index()
    op_of = dict(zip(by_op["name"], by_op["op"], strict=True))
    occupancy = (frame["occupancy"] * frame["dur"]).groupby(frame["name"]).sum(min_count=1)
    weight = frame["dur"].where(frame["occupancy"].notna()).groupby(frame["name"]).sum()
    found = [
        Kernel(
            name=labels[code],
            kind=kinds.kernel_kind(labels[code]),
            op=str(labels[op_of[code]]) if op_of[code] >= 0 else "",
            calls=int(count),
            ns=round_half_up(int(total), used.count),
            share=float(total) / used.count / step_ns if step_ns else 0.0,
            tensor_cores=kinds.uses_tensor_cores(labels[code]),
            dtype=kinds.math_dtype(labels[code]),
            occupancy=float(occupancy[code] / weight[code]) if weight[code] > 0 else None,
        )
        for code, count, total in zip(totals.index, totals["size"], totals["sum"], strict=True)
    ]
    return tuple(sorted(found, key=lambda kernel: (-kernel.ns, kernel.name)))


class KernelGroup(Struct, frozen=True):
    """Kernels with something in common."""

    label: str  # The kind of kernel, or the op that launched it ("" unknown).
    calls: int  # In all used steps.
    ns: int  # Sum of durations, per step.
    share: float  # `ns` over the step.


@fact
def kernel_kinds(facts: Facts) -> tuple[KernelGroup, ...]:
    """Kernel time of the used steps by kind of kernel, longest first. Raises Missing without device work."""
    labels = facts.rank.spans["name"].cat.categories
    frame = _in_steps(facts)
    kind_of = {code: kinds.kernel_kind(labels[code]).value for code in frame["name"].unique()}
    return _grouped(facts, frame["dur"], frame["name"].map(kind_of))


@fact
def kernel_ops(facts: Facts) -> tuple[KernelGroup, ...]:
    """Kernel time of the used steps by the op that launched it, longest first. Raises Missing without device work."""
    labels = facts.rank.spans["name"].cat.categories
    frame = _in_steps(facts)
    op_of = {code: str(labels[code]) if code >= 0 else "" for code in frame["op"].unique()}
    return _grouped(facts, frame["dur"], frame["op"].map(op_of))


def _grouped(facts: Facts, dur: pd.Series[int], label: pd.Series[str]) -> tuple[KernelGroup, ...]:
    count, step_ns = steps(facts).count, breakdown(facts).step_ns
    totals = dur.groupby(label, sort=False).agg(["size", "sum"])
    found = [
        KernelGroup(str(name), int(calls), round_half_up(int(ns), count), int(ns) / count / step_ns if step_ns else 0.0)
        for name, calls, ns in totals.itertuples()
    ]
    return tuple(sorted(found, key=lambda group: (-group.ns, group.label)))


def _in_steps(facts: Facts) -> pd.DataFrame:
    """Kernels that start in the used steps: codes of name and op (-1 none), dur in ns, occupancy."""
    work, used, spans = device_work(facts), steps(facts), facts.rank.spans
    if not len(work.ids):
        raise NO_DEVICE
    kind = spans["kind"].cat.codes.to_numpy()[work.ids]
    inside = (kind == enums.code(SpanKind.KERNEL)) & (work.start_ns >= used.start_ns) & (work.start_ns < used.end_ns)
    codes = spans["name"].cat.codes.to_numpy()
    launch = work.launch[inside]
    op = np.full(len(launch), -1, dtype=np.int64)
    op[launch >= 0] = enclosing_op(facts, launch[launch >= 0])
    return pd.DataFrame(
        {
            "name": codes[work.ids[inside]],
            "op": np.where(op >= 0, codes[op], -1),
            "dur": (work.end_ns - work.start_ns)[inside],
            "occupancy": facts.rank.kernels["occupancy"].reindex(work.ids[inside]).to_numpy(),
        }
    )
