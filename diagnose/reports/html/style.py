"""How the page and its figures look, and what it carries so that it opens offline."""

import base64
import gzip
import hashlib
import html
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.timeline import IDLE, MARK_OF_PATH, PATH, MarkKind
from diagnose.facts.core.base import Missing
from diagnose.facts.core.breakdown import PATH_CAUSES, TimeCause
from diagnose.facts.core.steps import Measure
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import KernelKind
from diagnose.trace.units import clipped

# Okabe and Ito's palette (2008), and greys; idle that only the device can explain is grey, as nobody can fix it.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E6C229"
ORANGE, RED, PINK = "#E69F00", "#D55E00", "#CC79A7"
DARK, GREY, PALE = "#6B6B6B", "#999999", "#C4C4C4"

COMPUTE, COMMUNICATION, COPY = BLUE, PINK, GREEN
NOT_RECORDED = "#D0C8E0"  # Neither busy nor idle: nothing says which.

CAUSE_COLOURS = {
    TimeCause.LOADER: ORANGE,
    TimeCause.SYNC: RED,
    TimeCause.OPS: YELLOW,
    TimeCause.PYTHON: SKY,
    TimeCause.LAUNCH: "#B59A00",
    TimeCause.HOST_COPY: "#66C2A5",
    TimeCause.ALLOCATION: "#8C510A",
    TimeCause.GARBAGE_COLLECTION: "#BF812D",
    TimeCause.COMPILE: "#7A5195",
    TimeCause.CHECKPOINT: "#A6761D",
    TimeCause.OTHER_RANK: "#B04A84",
    TimeCause.HOST_COMPUTE: "#E7298A",
    TimeCause.OPTIMIZER: "#5E7F2E",
    TimeCause.BLOCKED: "#8DA0CB",
    TimeCause.DEVICE_WAIT: GREY,
    TimeCause.BETWEEN_KERNELS: PALE,
    TimeCause.HOST_NOT_RECORDED: "#8A8A8A",
    TimeCause.UNKNOWN: DARK,
    TimeCause.OTHER_STEPS: NOT_RECORDED,
}

MARK_COLOURS = {
    MarkKind.COMPUTE.value: COMPUTE,
    MarkKind.COMMUNICATION.value: COMMUNICATION,
    MarkKind.COPY.value: COPY,
    MarkKind.OP.value: "#8FB8DE",
    MarkKind.ANNOTATION.value: "#B9B3D8",
    MarkKind.LOADER.value: ORANGE,
    MarkKind.COLLECTIVE.value: COMMUNICATION,
    MarkKind.LAUNCH.value: "#7FA7A0",
    MarkKind.COPY_CALL.value: COPY,
    MarkKind.SYNC.value: RED,
    MarkKind.ALLOCATION.value: "#8C510A",
    MarkKind.CALL.value: PALE,
    MarkKind.WORK_NOT_RECORDED.value: NOT_RECORDED,
    **{IDLE + cause.value: colour for cause, colour in CAUSE_COLOURS.items()},
    **{PATH + kind.value: CAUSE_COLOURS.get(kind, DARK) for kind in PATH_CAUSES if kind not in MARK_OF_PATH},
}
"""Colours of `facts.lanes.KINDS`."""

# Patterns: of time in which the GPU is idle, or that is hidden or saved; of communication; of copies.
HATCHED, CROSSED, DOTTED = "/", "x", "."
# Idle time of any cause; what fixes take away; communication that compute hides.
NO_CAUSE, SAVED, HIDDEN = "#B8B8B8", "#7CB342", "#E8C3D8"
SHADE = "rgba(128,128,128,0.18)"  # Behind what it is about.
HEAT = ((0.0, "#F2E9D8"), (0.5, ORANGE), (1.0, "#7A2E00"))  # From little to much.

_MULTIPLYING = (KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.TRITON_TEMPLATE, KernelKind.RNN)
KERNEL_COLOURS = {
    **dict.fromkeys((kind.value for kind in KernelKind), "#8FB8DE"),
    **dict.fromkeys((kind.value for kind in _MULTIPLYING), COMPUTE),
    KernelKind.COMMUNICATION.value: COMMUNICATION,
    KernelKind.MEMORY.value: COPY,
}
"""By the value of a KernelKind; compute in two blues, of which the deep one multiplies matrices."""

MEMORY_COLOURS = {
    HostMemory.PINNED: COPY,
    HostMemory.PAGEABLE: RED,
    HostMemory.MANAGED: PINK,
    HostMemory.NONE: BLUE,
    HostMemory.UNKNOWN: DARK,
}
DIRECTION_SYMBOLS = {
    Direction.H2D: "triangle-up",
    Direction.D2H: "triangle-down",
    Direction.D2D: "circle",
    Direction.P2P: "diamond",
    Direction.H2H: "square",
    Direction.UNKNOWN: "x",
}

DTYPE_MARKERS = {
    "fp64": (DARK, "square"),
    "fp32": (RED, "triangle-up"),
    "tf32": (ORANGE, "triangle-down"),
    "fp16": (GREEN, "diamond"),
    "bf16": (BLUE, "circle"),
    "fp8": (PINK, "star"),
    "fp4": ("#8C510A", "hexagon"),
    "int8": ("#7A5195", "pentagon"),
    "": (GREY, "x"),
}
"""Colour and symbol of what is multiplied in."""

TEXT, GRID = "#404040", "rgba(128,128,128,0.25)"
"""Readable on white and, as the page sets them anew, on black."""


def plain(name: str, most: int = 200) -> str:
    """A name from a trace as text that plotly shows as it is: it would read `<` and `&` as markup."""
    return html.escape(clipped(name, most), quote=False)


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty figure with the fonts, margins and grid that all figures share."""
    made = go.Figure()
    made.update_layout(
        template="none",
        height=height,
        margin={"l": 8, "r": 8, "t": 8, "b": 8},
        font={"family": "system-ui, sans-serif", "size": 12, "color": TEXT},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        hoverlabel={"align": "left", "namelength": -1},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.02, "x": 0},
        bargap=0.25,
    )
    made.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    made.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True, title={"standoff": 8})
    made.update_layout(**layout)
    return made


ROW, TWO_LINES = 38, 52  # Height of a bar below its label of one line, or two.


def rows(labels: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The layout of horizontal bars at 0, 1, ...: each below its label and value, so that a narrow screen has room.
    Labels are ready for plotly, as `plain` makes them. Bars are 0.3 rows high."""
    texts = [
        {"x": x, "xanchor": anchor, "align": anchor, "text": text, "y": place - 0.17}
        for place, pair in enumerate(labels)
        for x, anchor, text in zip((0, 1), ("left", "right"), pair, strict=True)
    ]
    common = {"xref": "paper", "yref": "y", "yanchor": "bottom", "showarrow": False, "borderpad": 0}
    return {
        "height": (TWO_LINES if any("<br>" in label for label, _ in labels) else ROW) * len(labels) + 56,
        "annotations": [{**common, **text} for text in texts],
        "yaxis": {"visible": False, "range": [len(labels) - 0.75, -0.95], "fixedrange": True},
        "showlegend": False,
    }


def add_rows(
    made: go.Figure,
    y: Sequence[int],
    ns: Sequence[int],
    said: Sequence[str],
    marker: dict[str, Any],
    base_ns: Sequence[int] = (),
) -> None:
    """Add horizontal bars at rows `y`, `ns` long from `base_ns` (or 0) on, drawn in ms; `said`: their hover texts."""
    base = {"base": [one / 1e6 for one in base_ns]} if base_ns else {}
    x = [one / 1e6 for one in ns]
    made.add_bar(
        orientation="h", y=list(y), x=x, width=0.3, marker=marker, hovertext=list(said), hoverinfo="text", **base
    )


def pattern(shape: str) -> dict[str, Any]:
    """A pattern over a colour, so that it is told without the colour."""
    return {"shape": shape, "size": 7, "solidity": 0.12, "fillmode": "overlay"}


def decades(title: str, values: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis with SI prefixes: labels at powers of ten, and in between for a range of 30-fold or less."""
    wide = max(values) > 30 * min(values)
    return {"type": "log", "dtick": 1 if wide else "D2", "tickformat": "~s", "title": {"text": title, "standoff": 8}}


def per_step(diagnosis: Diagnosis) -> str:
    """What follows a time in a text: nothing where it is of the recorded window."""
    return "" if diagnosis.steps is not None and diagnosis.steps.measure == Measure.WINDOW else " per step"


def each_step(total: int, diagnosis: Diagnosis) -> float:
    """A count per step, from its total in all used steps."""
    return total / max(diagnosis.steps.used if diagnosis.steps else 1, 1)


def missing(diagnosis: Diagnosis, fact: str, otherwise: Missing) -> Missing:
    """Why the Diagnosis lacks a fact: as it says itself, else `otherwise`."""
    absent = (one for one in diagnosis.absent if one.fact in (fact, "steps"))
    return next((Missing(one.what, one.how_to_record_it) for one in absent), otherwise)


MOST_STEPS = 30  # Steps that are bounded in a figure of them all.
LARGEST_MARKER = 28  # Pixels across.


def step_bounds(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    """Thin lines between steps, on an x axis in ms of the timeline; of many steps none."""
    bounds = diagnosis.timeline.bounds_ns if diagnosis.timeline else ()
    return step_lines(bounds) if len(bounds) <= MOST_STEPS else []


def step_lines(bounds_ns: Sequence[int]) -> list[dict[str, Any]]:
    """Thin lines at these times, on an x axis in ms."""
    look = {"type": "line", "yref": "paper", "y0": 0, "y1": 1, "line": {"color": GREY, "width": 1, "dash": "dot"}}
    return [{**look, "x0": ns / 1e6, "x1": ns / 1e6} for ns in bounds_ns]


def add_markers(
    made: go.Figure,
    name: str,
    look: tuple[str, str],
    x: Sequence[float],
    y: Sequence[float],
    amounts: tuple[Sequence[int], int],
    said: Sequence[str],
) -> None:
    """Add markers that look like (colour, symbol), with areas by `amounts`: one per marker, and the figure's largest.
    `said`: their hover texts."""
    colour, symbol = look
    made.add_scatter(
        name=name,
        mode="markers",
        x=np.array(x),
        y=np.array(y),
        marker={
            "color": colour,
            "symbol": symbol,
            "size": np.array(amounts[0]),
            "sizemode": "area",
            "sizeref": 2 * max(amounts[1], 1) / LARGEST_MARKER**2,
            "sizemin": 4,
            "opacity": 0.75,
        },
        hovertext=list(said),
        hoverinfo="text",
    )


def add_line(
    made: go.Figure, x: tuple[float, float], y: tuple[float, float], label: str, position: str, look: tuple[str, str]
) -> None:
    """Add a line with (colour, dash) and a label at its left end, or its right end if `position` ends in "left"."""
    made.add_scatter(
        mode="lines+text",
        x=list(x),
        y=list(y),
        text=["", label] if position.endswith("left") else [label, ""],
        textposition=position,
        cliponaxis=False,
        line={"color": look[0], "dash": look[1], "width": 1.5},
        hoverinfo="skip",
        showlegend=False,
    )


def text(name: str) -> str:
    """A file that lies beside this one."""
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def template(name: str) -> jinja2.Template:
    """A template that lies beside this file, compiled once in a process."""
    return _environment().get_template(name)


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    """How templates are rendered: all values are escaped, as names in a trace are untrusted."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(text),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["prose"] = prose
    return environment


_CODE = re.compile(r"`([^`]+)`")
_LINE_BREAK = re.compile(r"\n(?!- )")
_LINK = re.compile(r"https://[^\s<>&\"']+[\w/]")


def prose(written: str) -> Markup:
    """Text of a rule's page as HTML: its lines flow, `code` is code, addresses are links; all else is text."""
    flowing = "\n\n".join(_LINE_BREAK.sub(" ", paragraph) for paragraph in written.split("\n\n"))
    linked = _LINK.sub(r'<a href="\g<0>" target="_blank" rel="noopener noreferrer">\g<0></a>', str(escape(flowing)))
    return Markup(_CODE.sub(r"<code>\1</code>", linked))


def packed(content: str | bytes) -> str:
    """Content as gzip in base64, which the page unpacks (DecompressionStream: browsers since 2023)."""
    raw = content.encode() if isinstance(content, str) else content
    return base64.b64encode(gzip.compress(raw, compresslevel=9, mtime=0)).decode()


@lru_cache(maxsize=1)
def plotly_script() -> tuple[str, str]:
    """plotly.js, packed, and its hash for the content security policy."""
    script = get_plotlyjs()
    return packed(script), script_hash(script)


def script_hash(script: str) -> str:
    """The source expression that allows exactly this script (CSP level 3)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
