"""The GPU's work in figures: kernels, copies, launches, and how near to the roof ops come."""

import statistics
from collections import Counter
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from msgspec import Struct

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.timeline import CopySize, CopySizes, LaunchCurve, RooflineKind, RooflineOp, RooflinePicture
from diagnose.facts.core.base import Missing
from diagnose.facts.device.kernels import Kernel
from diagnose.facts.host.python import Op
from diagnose.reports.html import style
from diagnose.reports.html.style import each_step, per_step, plain
from diagnose.trace import kinds
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.units import clipped, duration, number, share, size, three_digits

ROOT, SHORTER = "all kernels", "shorter kernels"


def kernel_tree(diagnosis: Diagnosis) -> go.Figure:
    """Kernel time by kind, op and kernel; without a GPU the ops' own time. Raises Missing without either."""
    shown = _kernel_boxes(diagnosis) if diagnosis.kernels else _op_boxes(diagnosis)
    place = {box.path: str(k) for k, box in enumerate(shown)}
    made = style.figure(420, uniformtext={"minsize": 9, "mode": "hide"})
    made.add_treemap(
        ids=[str(k) for k in range(len(shown))],
        parents=[place.get(box.path[:-1], "") for box in shown],
        labels=[box.label for box in shown],
        # ns, not ms: plotly wants parents to be the exact sum of their children.
        values=np.array([box.ns for box in shown]),
        text=[duration(box.ns) for box in shown],
        hovertext=[box.hover for box in shown],
        hoverinfo="text",
        textinfo="label+text",
        branchvalues="total",
        marker={"colors": [box.colour for box in shown], "line": {"width": 1}},
        tiling={"pad": 1},
        pathbar={"thickness": 18},
    )
    return made


def kernel_tree_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the kernel tree: where most time goes, and the longest kernel."""
    per = per_step(diagnosis)
    if not diagnosis.kernels:
        found = _ops(diagnosis)
        total = sum(one.self_ns for one in found)
        return f"Of {duration(total)} in ops{per}, {share(found[0].self_ns, total)} go to {clipped(found[0].name, 80)}."
    first, groups = diagnosis.kernels[0], diagnosis.kernel_kinds or ()
    total = sum(group.ns for group in groups)
    head = f"Of {duration(total)} in kernels{per}, {share(groups[0].ns, total)} are of kind {groups[0].label}"
    return f"{head}; the longest kernel, {kinds.short_name(first.name, 60)}, takes {duration(first.ns)}."


class Box(Struct, frozen=True):
    """A rectangle of the kernel tree: kinds, the ops that launched them, kernels; without a GPU ops of the host."""

    path: tuple[str, ...]  # Names from the root to it.
    label: str
    ns: int  # Per step.
    hover: str
    colour: str


def _kernel_boxes(diagnosis: Diagnosis) -> list[Box]:
    """Boxes of the treemap: kernels inside of ops inside of kinds; a parent's time is the sum of its children's."""
    per = per_step(diagnosis)
    leaves, rest = list[Box](), {group.label: (group.ns, group.calls) for group in diagnosis.kernel_kinds or ()}
    for kernel in diagnosis.kernels or ():
        kind = kernel.kind.value
        ns, calls = rest.get(kind, (kernel.ns, kernel.calls))
        rest[kind] = ns - kernel.ns, calls - kernel.calls
        path = (ROOT, kind, kernel.op or "op unknown", kernel.name)
        label = plain(kinds.short_name(kernel.name, 28))
        leaves.append(Box(path, label, kernel.ns, _kernel_hover(kernel, diagnosis), style.KERNEL_COLOURS[kind]))
    for kind, (ns, calls) in rest.items():
        if calls > 0 and ns > 0:
            hover = f"shorter kernels of kind {kind}<br>{duration(ns)}{per}"
            leaves.append(Box((ROOT, kind, SHORTER), SHORTER, ns, hover, style.KERNEL_COLOURS[kind]))
    sums = Counter[tuple[str, ...]]()
    for leaf in leaves:
        for depth in range(1, len(leaf.path)):
            sums[leaf.path[:depth]] += leaf.ns
    inner = []
    for above, ns in sums.items():
        hover = f"{plain(above[-1])}<br>{duration(ns)}{per}, {share(ns, sums[(ROOT,)])} of all kernels"
        colour = style.KERNEL_COLOURS[above[1]] if len(above) > 1 else style.SHADE
        inner.append(Box(above, plain(above[-1], 40), ns, hover, colour))
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
    shown = []
    for op in _ops(diagnosis):
        calls = f"in {number(each_step(op.calls, diagnosis))} calls"
        hover = f"{plain(op.name)}<br>{duration(op.self_ns)}{per_step(diagnosis)} {calls}"
        shown.append(Box((op.name,), plain(op.name, 40), op.self_ns, hover, style.MARK_COLOURS["op"]))
    return shown


def _ops(diagnosis: Diagnosis) -> list[Op]:
    """The ops that take time, where no GPU was recorded. Raises Missing without any."""
    found = [op for op in diagnosis.ops or () if op.self_ns] if diagnosis.breakdown is None else []
    if not found:
        raise style.missing(diagnosis, "kernels", Missing("kernels", "There are none in these steps."))
    return found


def copies(diagnosis: Diagnosis) -> go.Figure:
    """Rate over size of copies, a marker per size, larger for more time. Raises Missing if no size is known."""
    found = _copies(diagnosis)
    most = max(copy.calls * copy.ns for copy in found.sizes)
    rates, ends = [_rate(copy) for copy in found.sizes], _padded_range([copy.bytes for copy in found.sizes])
    link = found.link_bytes_per_s if any(copy.direction in HOST for copy in found.sizes) else None
    made = style.figure(360, showlegend=True)
    made.update_xaxes(**style.decades("size of a copy", ends), ticksuffix="B")
    made.update_yaxes(**style.decades("bytes per second", [*rates, link or rates[0]]), ticksuffix="B")
    for direction, memory in dict.fromkeys((copy.direction, copy.host_memory) for copy in found.sizes):
        alike = [copy for copy in found.sizes if (copy.direction, copy.host_memory) == (direction, memory)]
        style.add_markers(
            made,
            _copy_name(direction, memory),
            (style.MEMORY_COLOURS[memory], style.DIRECTION_SYMBOLS[direction]),
            [one.bytes for one in alike],
            [_rate(one) for one in alike],
            ([one.calls * one.ns for one in alike], most),
            [_copy_hover(one, diagnosis) for one in alike],
        )
    if link is not None:
        label = f"link to the host: {size(link)}/s"
        style.add_line(made, ends, (link, link), label, "top right", (style.DARK, "dash"))
    return made


HOST = (Direction.H2D, Direction.D2H)  # Copies over the link to the host.


def _padded_range(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 2, max(values) * 2


def copies_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the copies: those that take longest together, and their rate."""
    found = _copies(diagnosis)
    most, link = max(found.sizes, key=lambda size: size.calls * size.ns), found.link_bytes_per_s
    known = link is not None and most.direction in HOST
    of_link = f", {share(_rate(most), link)} of the link's {size(link)}/s" if known and link else ""
    what = f"{_copy_name(most.direction, most.host_memory)} of {size(most.bytes)}"
    return f"The copies that take longest together, {what}, run at {size(_rate(most))}/s{of_link}."


def _copies(diagnosis: Diagnosis) -> CopySizes:
    """The copies by size, one at least. Raises Missing if copies or their sizes were not recorded."""
    found = diagnosis.pictures.copies if diagnosis.pictures else None
    if found is None:
        raise style.missing(diagnosis, "copies", Missing("copies", "Record a GPU."))
    if not found.sizes:
        raise Missing("copies whose size is known", "There are none in these steps.")
    return found


def _rate(one: CopySize) -> float:
    return one.bytes / max(one.ns, 1) * 1e9


def _copy_name(direction: Direction, memory: HostMemory) -> str:
    return direction.value if memory is HostMemory.NONE else f"{direction.value} ({memory.value} memory)"


def _copy_hover(one: CopySize, diagnosis: Diagnosis) -> str:
    calls, per = each_step(one.calls, diagnosis), per_step(diagnosis)
    rate = f"{size(one.bytes)} in {duration(one.ns)}: {size(_rate(one))}/s"
    together = f"{number(calls)}{per}, {duration(calls * one.ns)} together"
    return f"{_copy_name(one.direction, one.host_memory)}<br>{rate}<br>{together}"


def launches(diagnosis: Diagnosis) -> go.Figure:
    """How far the host is ahead: operations in the queue, and how long they wait. Raises Missing without launches."""
    curve = _launches(diagnosis)
    moment, median = np.array(curve.moment_ns) / 1e6, np.array(curve.depth_median)
    least, delay = np.array(curve.depth_least), np.maximum(np.array(curve.delay_median_ns) / 1e3, SHORTEST_US)
    made = style.figure(380, showlegend=False, shapes=style.step_bounds(diagnosis))
    waits = made.layout.yaxis.to_plotly_json() | style.decades("us until it runs", delay.tolist())
    made.update_xaxes(anchor="y2", title={"text": "ms on the timeline"}, separatethousands=True)
    made.update_yaxes(domain=[0.56, 1], title={"text": "in the queue"}, rangemode="tozero")
    made.update_layout(yaxis2={**waits, "domain": [0, 0.44], "tickformat": ",~r"})
    piece = np.diff(moment).min() if len(moment) > 1 else 1.0
    made.add_bar(x=moment, y=median - least, base=least, width=piece, marker={"color": style.SKY}, hoverinfo="skip")
    depths = zip(curve.depth_least, curve.depth_median, strict=True)
    queue = [f"{low:,} to {middle:,} (least, median)" for low, middle in depths]
    wait = [f"{duration(ns)} (median)" for ns in curve.delay_median_ns]
    for values, panel, colour, said in ((median, "y", style.BLUE, queue), (delay, "y2", style.ORANGE, wait)):
        made.add_scatter(
            x=moment,
            y=values,
            yaxis=panel,
            mode="markers",
            marker={"color": colour, "size": 4},
            hovertext=said,
            hoverinfo="text",
        )
    return made


SHORTEST_US = 0.1  # Shorter delays, which are 0, are drawn as this: a logarithmic axis has no 0.


def launches_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the launches: how often the queue is empty, and how soon work starts."""
    curve = _launches(diagnosis)
    empty, count = sum(depth == 0 for depth in curve.depth_least), len(curve.depth_least)
    delay = duration(round(statistics.median(curve.delay_median_ns)))
    runs = f"runs empty in {share(empty, count)} of" if empty else "never runs empty in"
    starts = f"half of the time work starts within {delay} of its launch"
    return f"The launch queue {runs} the {count} moments drawn; {starts}."


def _launches(diagnosis: Diagnosis) -> LaunchCurve:
    found = diagnosis.pictures.launches if diagnosis.pictures else None
    if found is None or not found.moment_ns:
        raise style.missing(diagnosis, "launches", Missing("launches", "There are none in these steps."))
    return found


def roofline(diagnosis: Diagnosis) -> go.Figure:
    """What ops reach against what the device can do at most. Raises Missing without shapes or peak rates."""
    picture = _roofline(diagnosis)
    intensity, bandwidth = [_intensity(op) for op in picture.ops], picture.bytes_per_s
    low, high = _padded_range(intensity)
    ridges = {dtype: rate / bandwidth for dtype, rate in picture.flops_per_s.items()}
    steep = max([low * 2, *(ridges.values() or [high])])
    reached = [op.flops_per_s for op in picture.ops]
    made = style.figure(400, showlegend=True)
    made.update_xaxes(**style.decades("FLOP per byte moved", [low, steep]))
    made.update_yaxes(**style.decades("FLOP/s", [*reached, low * bandwidth, steep * bandwidth]))
    slope, ends = f"memory: {size(bandwidth)}/s", (low * bandwidth, steep * bandwidth)
    style.add_line(made, (low, steep), ends, slope, "bottom right", (style.DARK, "dash"))
    for dtype, rate in picture.flops_per_s.items():
        label, flat = f"{plain(dtype)}: {three_digits(rate / 1e12)} TFLOP/s", (ridges[dtype], max(high, 4 * steep))
        style.add_line(made, flat, (rate, rate), label, "top left", (_marker(dtype)[0], "solid"))
    for dtype in dict.fromkeys(op.dtype for op in picture.ops):
        alike = [op for op in picture.ops if op.dtype == dtype]
        style.add_markers(
            made,
            plain(dtype) or "type unknown",
            _marker(dtype),
            [_intensity(one) for one in alike],
            [one.flops_per_s for one in alike],
            ([one.ns for one in alike], picture.ops[0].ns),
            [_op_hover(one, picture, diagnosis) for one in alike],
        )
    if picture.kinds:
        made.add_scatter(
            name="all of a kind",
            mode="markers+text",
            x=[_intensity(kind) for kind in picture.kinds],
            y=[kind.flops_per_s for kind in picture.kinds],
            text=[f"{kind.kind.value}  " for kind in picture.kinds],
            textposition="middle left",
            cliponaxis=False,
            marker={"symbol": "circle-open", "size": 16, "color": style.DARK, "line": {"width": 2}},
            hovertext=[_kind_hover(kind, diagnosis) for kind in picture.kinds],
            hoverinfo="text",
        )
    return made


def _kind_hover(one: RooflineKind, diagnosis: Diagnosis) -> str:
    calls, per = number(each_step(one.calls, diagnosis)), per_step(diagnosis)
    reached = f"{three_digits(one.flops_per_s / 1e12)} TFLOP/s at {three_digits(_intensity(one))} FLOP per byte"
    return f"{one.kind.value}<br>{duration(one.ns)}{per} in {calls} calls<br>{reached}"


def roofline_sentence(diagnosis: Diagnosis) -> str:
    """The sentence below the roofline: what the op that takes longest reaches."""
    picture = _roofline(diagnosis)
    first = picture.ops[0]
    name, reached = clipped(first.name, 60), _reached(first, picture)
    least = "bytes are the least that can move: each operand once, by its shape"
    return f"The op that takes longest, {name} ({_dims(first)}), reaches {reached} ({picture.device}); {least}."


def _roofline(diagnosis: Diagnosis) -> RooflinePicture:
    """The ops under the device's roof. Raises Missing that says which part of the recording is lacking."""
    found = diagnosis.pictures.roofline if diagnosis.pictures else None
    if found is not None:
        return found
    if diagnosis.breakdown is None:
        raise style.missing(diagnosis, "breakdown", Missing("device work", "Record a GPU."))
    if not any("shapes" in source.recorded for source in diagnosis.provenance.sources if source.rank == diagnosis.rank):
        raise Missing("shapes", "Record with record_shapes=True.")
    raise Missing("ops whose cost is known, on a GPU whose peak rates are known", "There are none in these steps.")


def _intensity(one: RooflineOp | RooflineKind) -> float:
    return one.flops / one.bytes


def _marker(dtype: str) -> tuple[str, str]:
    return style.DTYPE_MARKERS.get(dtype, style.DTYPE_MARKERS[""])


def _reached(one: RooflineOp, picture: RooflinePicture) -> str:
    """An op's TFLOP/s, and its share of the roofline at its intensity if the peak of its type is known."""
    most, reached = picture.flops_per_s.get(one.dtype), f"{three_digits(one.flops_per_s / 1e12)} TFLOP/s"
    if most is None:
        return reached
    roof = min(most, picture.bytes_per_s * _intensity(one))
    return f"{reached}, {share(one.flops_per_s, roof)} of the roof over it"


def _dims(one: RooflineOp) -> str:
    return " x ".join("?" if dim < 0 else f"{dim:,}" for dim in one.dims)


def _op_hover(one: RooflineOp, picture: RooflinePicture, diagnosis: Diagnosis) -> str:
    dims = f"M, N, K: {_dims(one)}, {plain(one.dtype) or 'type unknown'}"
    times = f"{duration(one.ns)}{per_step(diagnosis)} in {number(each_step(one.calls, diagnosis))} calls"
    return f"{plain(one.name)}<br>{dims}<br>{times}<br>{_reached(one, picture)}"
