"""What very many ranks take, as it is published, and its tables."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent.with_name("scale.json")


@dataclass(frozen=True)
class Mapped:
    """A folder of ranks, diagnosed."""

    ranks: int
    by: str
    seconds: float
    reducer_bytes: int  # Peak of the process that puts the ranks together.
    worker_bytes: int  # Peak of the largest process besides.
    straggler: int
    first: str  # What is to be fixed first.
    found: tuple[int, ...]  # On which ranks.
    step_ns: int
    saving_ns: int


@dataclass(frozen=True)
class Reduced:
    """Ranks put together."""

    ranks: int
    calls: int  # Collectives of one rank.
    compared_calls: int  # Of one rank, after what does not fit was left out.
    packed_bytes: int  # What one rank's collectives take on the way.
    seconds: float
    bytes: int  # Peak of the process.


@dataclass(frozen=True)
class Published:
    """All of it."""

    cores: int
    mapped: list[Mapped]
    reduced: list[Reduced]


def mapped() -> str:
    """Folders of ranks, diagnosed."""
    told = _published()
    rows = [
        f"| {one.ranks:,} | {one.by} | {one.seconds:.0f} s | {1e3 * one.seconds / one.ranks:.0f} ms |"
        f" {_mb(one.reducer_bytes)} | {_mb(one.worker_bytes)} | {_ms(one.step_ns)} | {_said(one)} |"
        for one in told.mapped
    ]
    head = "| ranks | by | time | a rank | peak of the reducer | of a worker | step | found first |"
    return "\n".join([head, "|--:|---|--:|--:|--:|--:|--:|---|", *rows, "", f"{told.cores} cores."])


def _said(one: Mapped) -> str:
    right = "the late rank" if one.found == (one.straggler,) else "not the late rank"
    return f"{one.first}, {right}, saves {_ms(one.saving_ns)}"


def reduced() -> str:
    """Ranks put together to one job."""
    rows, before = list[str](), dict[tuple[int, int], Reduced]()
    for one in _published().reduced:
        half = before.get((one.ranks // 2, one.calls))
        before[one.ranks, one.calls] = one
        growth = "" if half is None else f"{one.seconds / half.seconds:.2f} x"
        rows.append(
            f"| {one.ranks:,} | {one.calls} | {one.compared_calls} | {one.packed_bytes / 1e3:.1f} kB |"
            f" {one.seconds:.1f} s | {growth} | {_mb(one.bytes)} |"
        )
    head = "| ranks | collectives a rank | compared | sent by a rank | CPU time | of half as many ranks | peak memory |"
    return "\n".join([head, "|--:|--:|--:|--:|--:|--:|--:|", *rows])


def _published() -> Published:
    return msgspec.json.decode(RESULTS.read_bytes(), type=Published)


def _mb(size: int) -> str:
    return f"{size / 1e6:,.0f} MB"


def _ms(ns: int) -> str:
    return f"{ns / 1e6:.1f} ms"
