"""Naming findings on a command line: by number, by rule or by its code."""

from collections.abc import Sequence

from diagnose.contracts.finding import RankedFinding


def names(asked: str, finding: RankedFinding) -> bool:
    """Whether it is this finding that is asked for."""
    return asked in (str(finding.rank_order), finding.rule) or asked.upper() == finding.code


def why_unknown(asked: Sequence[str], findings: Sequence[RankedFinding]) -> str:
    """A sentence on the first that names no finding, and which there are; empty if each names one."""
    unknown = [one for one in asked if not any(names(one, finding) for finding in findings)]
    if not unknown:
        return ""
    there = ", ".join(f"{one.rank_order} {one.rule}" for one in findings) or "none"
    return f"--fix {unknown[0]} names no finding of this run. There are: {there}."
