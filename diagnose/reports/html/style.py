"""How figures look: colours that the colour-blind can tell apart, text that stays text, one layout for all."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go

from diagnose.facts.idle import IdleCause
from diagnose.facts.lanes import IDLE, MarkKind
from diagnose.units import clipped

# Okabe and Ito's palette (2008), and greys; idle that only the device can explain is grey, as nobody can fix it.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#E6C229"
ORANGE, RED, PINK = "#E69F00", "#D55E00", "#CC79A7"
DARK, GREY, PALE = "#6B6B6B", "#999999", "#C4C4C4"

COMPUTE, COMMUNICATION, COPY = BLUE, PINK, GREEN

CAUSE_COLOURS = {
    IdleCause.LOADER: ORANGE,
    IdleCause.SYNC: RED,
    IdleCause.OPS: YELLOW,
    IdleCause.PYTHON: SKY,
    IdleCause.LAUNCH: "#B59A00",
    IdleCause.HOST_COPY: "#66C2A5",
    IdleCause.ALLOCATION: "#8C510A",
    IdleCause.GARBAGE_COLLECTION: "#BF812D",
    IdleCause.COMPILE: "#7A5195",
    IdleCause.CHECKPOINT: "#A6761D",
    IdleCause.OTHER_RANK: "#B04A84",
    IdleCause.DEVICE_WAIT: GREY,
    IdleCause.BETWEEN_KERNELS: PALE,
    IdleCause.UNKNOWN: DARK,
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
    **{IDLE + cause.value: colour for cause, colour in CAUSE_COLOURS.items()},
}
"""Colours of `facts.lanes.KINDS`."""

TEXT, GRID = "#404040", "rgba(128,128,128,0.25)"
"""Readable on white and, as the page sets them anew, on black."""

MOST_LABEL = 48
"""Characters of a name beside an axis."""


def plain(name: str, most: int = 200) -> str:
    """A name from a trace as text that plotly shows as it is: it would read `<` and `&` as markup."""
    return html.escape(clipped(name, most), quote=False)


def figure(height: int, **layout: Any) -> go.Figure:
    """An empty figure in the look of all."""
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
    made.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, automargin=True)
    made.update_layout(**layout)
    return made


Draw = Callable[..., go.Figure]
