"""Recordings to compare, without files."""

from typing import Any

from diagnose.contracts.baseline import Baseline, KnownFinding, Run
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import AttributedTime, Part
from diagnose.trace.frames import Site

MS = 1_000_000
LINE = Site("src/train.py", 88, "main")


def spent(part: Part, kind: str, ns: int, op: str = "", name: str = "", calls: int = 1, **more: Any) -> AttributedTime:
    return AttributedTime(part, kind, op, name, more.get("shapes", ""), more.get("site"), calls, ns)


def run(*rows: AttributedTime, times_ns: tuple[int, ...] = (), unprofiled_ns: tuple[int, ...] = (), **more: Any) -> Run:
    """A recording of one step that goes to these rows, on a GPU."""
    known: dict[str, Any] = {
        "started": None,
        "format": "kineto",
        "devices": ("H100",),
        "world_size": None,
        "rank": 0,
        "measure": Measure.DEVICE,
        "samples_per_step": None,
        "flops_per_step": None,
        "findings": (),
        "looked": (),
        "settings": {},
        "ranks": (),
        "groups": (),
        **more,
    }
    times_ns = times_ns or (sum(row.ns for row in rows),)
    return Run(times_ns=times_ns, unprofiled_ns=unprofiled_ns, spending=rows, **known)


def side(*runs: Run) -> Baseline:
    return Baseline(tool_version="test", runs=runs)


def finding(rule: str, likely_ns: int, site: Site | None = None, minor: bool = False) -> KnownFinding:
    low, high = likely_ns - likely_ns // 10, likely_ns + likely_ns // 10
    return KnownFinding(
        rule=rule, code="XX01", title=rule, site=site, low_ns=low, likely_ns=likely_ns, high_ns=high, minor=minor
    )
