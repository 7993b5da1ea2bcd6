"""What the host runs: time by op, and Python time between ops by line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from diagnose.facts.base import Facts, Missing, fact
from diagnose.facts.breakdown import round_half_up
from diagnose.facts.host import host_activities, host_threads
from diagnose.facts.source_lines import frame_sites, sites_at
from diagnose.facts.steps import steps
from diagnose.trace import enums, intervals, nesting
from diagnose.trace.enums import SpanKind
from diagnose.trace.kinds import Site


@dataclass(frozen=True)
class Op:
    """All calls of one framework op on the host."""

    name: str
    calls: int
    """In all used steps."""
    self_ns: int
    """Host time in it and in no op inside it, over all threads, per step."""


@fact
def ops(facts: Facts) -> tuple[Op, ...]:
    """Ops of the used steps by name, longest self time first. Raises Missing if no ops were recorded."""
    spans, used = facts.rank.spans, steps(facts)
    is_op = np.isin(spans["kind"].cat.codes.to_numpy(), [enums.code(one) for one in (SpanKind.OP, SpanKind.COLLECTIVE)])
    start, dur = spans["start_ns"].to_numpy(), spans["dur_ns"].to_numpy()
    ids = np.flatnonzero(is_op & (start >= used.start_ns) & (start < used.end_ns))
    if not len(ids):
        raise Missing("framework ops", "Profile with ProfilerActivity.CPU.")
    parent = nesting.parents(spans["track"].to_numpy()[ids].astype(np.int64), start[ids], start[ids] + dur[ids])
    inner = np.zeros(len(ids), dtype=np.int64)
    np.add.at(inner, parent[parent >= 0], dur[ids][parent >= 0])
    self_ns = np.maximum(dur[ids] - inner, 0)
    codes = spans["name"].cat.codes.to_numpy()[ids]
    labels = spans["name"].cat.categories
    total = np.zeros(len(labels), dtype=np.int64)
    np.add.at(total, codes, self_ns)
    count = np.bincount(codes, minlength=len(labels))
    found = [
        Op(str(labels[int(code)]), int(count[code]), round_half_up(int(total[code]), used.count))
        for code in np.flatnonzero(count)
    ]
    return tuple(sorted(found, key=lambda op: (-op.self_ns, op.name)))


@dataclass(frozen=True)
class PythonLine:
    """Time a training thread spent between ops in one function of the user's code."""

    site: Site | None
    """None: no frame of the user's code was open."""
    ns: int
    """Per step."""


@fact
def python_lines(facts: Facts) -> tuple[PythonLine, ...]:
    """Time between ops by the line that was running in the middle of each pause. Raises Missing without stacks."""
    used = steps(facts)
    frame_sites(facts)
    taken = intervals.merge(*host_activities(facts).values())
    pauses = intervals.gaps(taken, used.start_ns, used.end_ns)
    main = np.full(pauses.size, host_threads(facts).main, dtype=np.int64)
    totals: dict[Site | None, int] = {}
    sites = sites_at(facts, (pauses.starts + pauses.ends) // 2, main)
    for site, ns in zip(sites, (pauses.ends - pauses.starts).tolist(), strict=True):
        totals[site] = totals.get(site, 0) + ns
    ranked = sorted(totals.items(), key=lambda item: -item[1])
    return tuple(PythonLine(site, round_half_up(ns, used.count)) for site, ns in ranked)
