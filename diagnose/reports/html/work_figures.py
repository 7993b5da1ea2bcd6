"""The GPU's work in figures: kernels, copies, launches, and how near to the roof ops come."""

import statistics
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.pictures import CopySize, CopySizes, LaunchCurve, RooflineKind, RooflineOp, RooflinePicture
from diagnose.facts.core.base import Missing
from diagnose.reports.html import style
from diagnose.reports.html.boxes import boxes, ops
from diagnose.reports.html.style import each_step, per_step, plain
from diagnose.trace import kinds
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.units import clipped, duration, number, share, size, three_digits


def kernel_tree(diagnosis: Diagnosis) -> go.Figure:
    """Kernel time by kind, op and kernel; without a GPU the ops' own time. Raises Missing without either."""
    shown = boxes(diagnosis)
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
    """What to see in it."""
    per = per_step(diagnosis)
    if not diagnosis.kernels:
        found = ops(diagnosis)
        total = sum(one.self_ns for one in found)
        return f"Of {duration(total)} in ops{per}, {share(found[0].self_ns, total)} go to {clipped(found[0].name, 80)}."
    first, groups = diagnosis.kernels[0], diagnosis.kernel_kinds or ()
    total = sum(group.ns for group in groups)
    head = f"Of {duration(total)} in kernels{per}, {share(groups[0].ns, total)} are of kind {groups[0].label}"
    return f"{head}; the longest kernel, {kinds.short_name(first.name, 60)}, takes {duration(first.ns)}."


def copies(diagnosis: Diagnosis) -> go.Figure:
    """Rate of copies over their size. Raises Missing if no size is known."""
    found = _copies(diagnosis)
    most = max(copy.calls * copy.ns for copy in found.sizes)
    rates, ends = [_rate(copy) for copy in found.sizes], _ends([copy.bytes for copy in found.sizes])
    link = found.link_bytes_per_s if any(copy.direction in HOST for copy in found.sizes) else None
    made = style.figure(360, showlegend=True)
    made.update_xaxes(**style.decades("size of a copy", ends), ticksuffix="B")
    made.update_yaxes(**style.decades("bytes per second", [*rates, link or rates[0]]), ticksuffix="B")
    for direction, memory in dict.fromkeys((copy.direction, copy.host_memory) for copy in found.sizes):
        mine = [copy for copy in found.sizes if (copy.direction, copy.host_memory) == (direction, memory)]
        style.add_markers(
            made,
            _copy_name(direction, memory),
            (style.MEMORY_COLOURS[memory], style.DIRECTION_SYMBOLS[direction]),
            [one.bytes for one in mine],
            [_rate(one) for one in mine],
            ([one.calls * one.ns for one in mine], most),
            [_copy_hover(one, diagnosis) for one in mine],
        )
    if link is not None:
        label = f"link to the host: {size(link)}/s"
        style.add_line(made, ends, (link, link), label, "top right", (style.DARK, "dash"))
    return made


HOST = (Direction.H2D, Direction.D2H)  # Copies over the link to the host.


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values) / 2, max(values) * 2


def copies_sentence(diagnosis: Diagnosis) -> str:
    """What to see in it."""
    found = _copies(diagnosis)
    most, link = max(found.sizes, key=lambda size: size.calls * size.ns), found.link_bytes_per_s
    known = link is not None and most.direction in HOST
    of_link = f", {share(_rate(most), link)} of the link's {size(link)}/s" if known and link else ""
    what = f"{_copy_name(most.direction, most.host_memory)} of {size(most.bytes)}"
    return f"The copies that take longest together, {what}, run at {size(_rate(most))}/s{of_link}."


def _copies(diagnosis: Diagnosis) -> CopySizes:
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
    made = style.figure(380, showlegend=False, **style.step_bounds(diagnosis))
    axis = made.layout.yaxis.to_plotly_json()
    made.update_xaxes(anchor="y2", title={"text": "ms on the timeline"}, separatethousands=True)
    made.update_yaxes(domain=[0.56, 1], title={"text": "in the queue"}, rangemode="tozero")
    made.update_layout(
        yaxis2={**axis, **style.decades("us until it runs", delay.tolist()), "domain": [0, 0.44], "tickformat": ",~r"}
    )
    piece = np.diff(moment).min() if len(moment) > 1 else 1.0
    made.add_bar(x=moment, y=median - least, base=least, width=piece, marker={"color": style.SKY}, hoverinfo="skip")
    queue = [
        f"{low:,} to {mid:,} (least, median)" for low, mid in zip(curve.depth_least, curve.depth_median, strict=True)
    ]
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
    """What to see in it."""
    curve = _launches(diagnosis)
    empty, count = sum(depth == 0 for depth in curve.depth_least), len(curve.depth_least)
    delay = duration(round(statistics.median(curve.delay_median_ns)))
    runs = f"runs empty in {share(empty, count)} of" if empty else "never runs empty in"
    return (
        f"The launch queue {runs} the {count} moments drawn; half of the time work starts within {delay} of its launch."
    )


def _launches(diagnosis: Diagnosis) -> LaunchCurve:
    found = diagnosis.pictures.launches if diagnosis.pictures else None
    if found is None or not found.moment_ns:
        raise style.missing(diagnosis, "launches", Missing("launches", "There are none in these steps."))
    return found


def roofline(diagnosis: Diagnosis) -> go.Figure:
    """What ops reach against what the device can do at most. Raises Missing without shapes or peak rates."""
    picture = _roofline(diagnosis)
    intensity, bandwidth = [_intensity(op) for op in picture.ops], picture.bytes_per_s
    low, high = _ends(intensity)
    ridges = {dtype: rate / bandwidth for dtype, rate in picture.flops_per_s.items()}
    steep = max([low * 2, *(ridges.values() or [high])])
    reached = [op.flops_per_s for op in picture.ops]
    made = style.figure(400, showlegend=True)
    made.update_xaxes(**style.decades("FLOP per byte moved", [low, steep]))
    made.update_yaxes(**style.decades("FLOP/s", [*reached, low * bandwidth, steep * bandwidth]))
    slope = f"memory: {size(bandwidth)}/s"
    ends = (low * bandwidth, steep * bandwidth)
    style.add_line(made, (low, steep), ends, slope, "bottom right", (style.DARK, "dash"))
    for dtype, rate in picture.flops_per_s.items():
        label, flat = f"{plain(dtype)}: {three_digits(rate / 1e12)} TFLOP/s", (ridges[dtype], max(high, 4 * steep))
        style.add_line(made, flat, (rate, rate), label, "top left", (_look(dtype)[0], "solid"))
    for dtype in dict.fromkeys(op.dtype for op in picture.ops):
        mine = [op for op in picture.ops if op.dtype == dtype]
        style.add_markers(
            made,
            plain(dtype) or "type unknown",
            _look(dtype),
            [_intensity(one) for one in mine],
            [one.flops_per_s for one in mine],
            ([one.ns for one in mine], picture.ops[0].ns),
            [_op_hover(one, picture, diagnosis) for one in mine],
        )
    if picture.kinds:
        _add_kinds(made, picture, diagnosis)
    return made


def _add_kinds(made: go.Figure, picture: RooflinePicture, diagnosis: Diagnosis) -> None:
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


def _kind_hover(one: RooflineKind, diagnosis: Diagnosis) -> str:
    calls, per = number(each_step(one.calls, diagnosis)), per_step(diagnosis)
    reached = f"{three_digits(one.flops_per_s / 1e12)} TFLOP/s at {three_digits(_intensity(one))} FLOP per byte"
    return f"{one.kind.value}<br>{duration(one.ns)}{per} in {calls} calls<br>{reached}"


def roofline_sentence(diagnosis: Diagnosis) -> str:
    """What to see in it."""
    picture = _roofline(diagnosis)
    first = picture.ops[0]
    roof, name = _roof(first, picture), clipped(first.name, 60)
    of_roof = "" if roof is None else f", {share(first.flops_per_s, roof)} of the roof over it"
    reached = f"{three_digits(first.flops_per_s / 1e12)} TFLOP/s{of_roof}"
    least = "bytes are the least that can move: each operand once, by its shape"
    return f"The op that takes longest, {name} ({_dims(first)}), reaches {reached} ({picture.device}); {least}."


def _roofline(diagnosis: Diagnosis) -> RooflinePicture:
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


def _look(dtype: str) -> tuple[str, str]:
    return style.DTYPE_MARKERS.get(dtype, style.DTYPE_MARKERS[""])


def _roof(one: RooflineOp, picture: RooflinePicture) -> float | None:
    """The most FLOP/s that an op of its intensity can reach; None if that is not known for its type."""
    most = picture.flops_per_s.get(one.dtype)
    return None if most is None else min(most, picture.bytes_per_s * _intensity(one))


def _dims(one: RooflineOp) -> str:
    return " x ".join("?" if dim < 0 else f"{dim:,}" for dim in one.dims)


def _op_hover(one: RooflineOp, picture: RooflinePicture, diagnosis: Diagnosis) -> str:
    roof, per = _roof(one, picture), per_step(diagnosis)
    reached = f"{three_digits(one.flops_per_s / 1e12)} TFLOP/s"
    return "<br>".join(
        (
            plain(one.name),
            f"M, N, K: {_dims(one)}, {plain(one.dtype) or 'type unknown'}",
            f"{duration(one.ns)}{per} in {number(each_step(one.calls, diagnosis))} calls",
            reached if roof is None else f"{reached}, {share(one.flops_per_s, roof)} of the roof over it",
        )
    )
