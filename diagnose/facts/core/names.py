"""Names of spans, and spans grouped by name."""

from __future__ import annotations

import numpy as np

from diagnose.facts.core.base import Facts
from diagnose.facts.core.source_lines import sites_of
from diagnose.facts.core.spans import members
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray


def name_codes(facts: Facts, ids: IntArray) -> IntArray:
    """The number of each span's name, -1 where the id is -1. Shape (ids,)."""
    return np.where(ids >= 0, facts.rank.spans["name"].cat.codes.to_numpy()[ids], -1).astype(np.int64)


def name_of(facts: Facts, span: int) -> str:
    """A span's name; "" for -1."""
    return str(facts.rank.spans["name"].iloc[span]) if span >= 0 else ""


def grouped(facts: Facts, calls: IntArray, *columns: IntArray) -> list[tuple[IntArray, Site | None]]:
    """Rows that agree in all columns and in the line of the user's code that led to their host call (-1: unknown)."""
    known = np.flatnonzero(calls >= 0)
    sites = dict(zip(known.tolist(), sites_of(facts, calls[known]), strict=True))
    numbers: dict[Site | None, int] = {}
    site = np.array([numbers.setdefault(sites.get(row), len(numbers)) for row in range(len(calls))], dtype=np.int64)
    keys, group = np.unique(np.stack([*columns, site]), axis=1, return_inverse=True)
    return [(rows, sites.get(int(rows[0]))) for rows in members(group.reshape(-1), keys.shape[1])]


BACKWARD = "autograd::engine::evaluate_function"  # Beginning of the ops that a backward pass consists of.


DDP_FORWARD = "DistributedDataParallel.forward"
