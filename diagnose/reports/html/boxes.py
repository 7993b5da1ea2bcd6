"""The boxes of the kernel tree: kinds, the ops that launched them, kernels; without a GPU the ops of the host."""

from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Missing
from diagnose.facts.device.kernels import Kernel
from diagnose.facts.host.python import Op
from diagnose.reports.html.style import KERNEL_COLOURS, MARK_COLOURS, SHADE, each_step, missing, per_step, plain
from diagnose.trace import kinds
from diagnose.trace.units import duration, number, share

ROOT, SHORTER = "all kernels", "shorter kernels"


class Box(Struct, frozen=True):
    """A rectangle of a tree."""

    path: tuple[str, ...]  # Names from the root to it.
    label: str
    ns: int  # Per step.
    hover: str
    colour: str


def boxes(diagnosis: Diagnosis) -> list[Box]:
    """All boxes, parents with the sum of their children. Raises Missing without kernels and ops."""
    return _kernel_boxes(diagnosis) if diagnosis.kernels else _op_boxes(diagnosis)


def _kernel_boxes(diagnosis: Diagnosis) -> list[Box]:
    per = per_step(diagnosis)
    rest = {kernel_kind.label: (kernel_kind.ns, kernel_kind.calls) for kernel_kind in diagnosis.kernel_kinds or ()}
    leaves: list[Box] = []
    for kernel in diagnosis.kernels or ():
        kind = kernel.kind.value
        ns, calls = rest.get(kind, (kernel.ns, kernel.calls))
        rest[kind] = ns - kernel.ns, calls - kernel.calls
        path = (ROOT, kind, kernel.op or "op unknown", kernel.name)
        label = plain(kinds.short_name(kernel.name, 28))
        leaves.append(Box(path, label, kernel.ns, _kernel_hover(kernel, diagnosis), KERNEL_COLOURS[kind]))
    for kind, (ns, calls) in rest.items():
        if calls > 0 and ns > 0:
            hover = f"shorter kernels of kind {kind}<br>{duration(ns)}{per}"
            leaves.append(Box((ROOT, kind, SHORTER), SHORTER, ns, hover, KERNEL_COLOURS[kind]))
    sums: dict[tuple[str, ...], int] = {}
    for leaf in leaves:
        for depth in range(1, len(leaf.path)):
            sums[leaf.path[:depth]] = sums.get(leaf.path[:depth], 0) + leaf.ns
    inner = [
        Box(
            path,
            plain(path[-1], 40),
            ns,
            f"{plain(path[-1])}<br>{duration(ns)}{per}, {share(ns, sums[(ROOT,)])} of all kernels",
            KERNEL_COLOURS[path[1]] if len(path) > 1 else SHADE,
        )
        for path, ns in sums.items()
    ]
    return inner + leaves


def _kernel_hover(one: Kernel, diagnosis: Diagnosis) -> str:
    unit = {True: "tensor cores", False: "no tensor cores", None: ""}[one.tensor_cores]
    calls, per = each_step(one.calls, diagnosis), per_step(diagnosis)
    lines = (
        plain(kinds.short_name(one.name, 100)),
        f"{duration(one.ns)}{per}, {share(one.share, 1)} of all time",
        f"{number(calls)} calls{per}, {duration(one.ns / calls)} each",
        ", ".join(filter(None, (one.dtype, unit))),
    )
    return "<br>".join(filter(None, lines))


def _op_boxes(diagnosis: Diagnosis) -> list[Box]:
    per = per_step(diagnosis)
    return [
        Box(
            (op.name,),
            plain(op.name, 40),
            op.self_ns,
            f"{plain(op.name)}<br>{duration(op.self_ns)}{per} in {number(each_step(op.calls, diagnosis))} calls",
            MARK_COLOURS["op"],
        )
        for op in ops(diagnosis)
    ]


def ops(diagnosis: Diagnosis) -> list[Op]:
    """The ops that take time, where there is no GPU. Raises Missing without any."""
    found = [op for op in diagnosis.ops or () if op.self_ns] if diagnosis.breakdown is None else []
    if not found:
        raise missing(diagnosis, "kernels", Missing("kernels", "There are none in these steps."))
    return found
