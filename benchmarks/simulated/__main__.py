"""Diagnose traces of a simulated GPU machine: `python -m benchmarks.simulated [--write] [--only NAME]`.

It needs no GPU and no recording. `--write` puts the rows into benchmarks/simulated.json.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

import msgspec

from benchmarks.simulated import tables
from benchmarks.simulated.cases import SIZES, Case, cases
from benchmarks.simulated.judge import Row, judge


def judged(some: Sequence[Case], sizes: Sequence[str] = SIZES) -> Iterator[Row]:
    """All of them at all sizes, on all cores."""
    asked = [(case.name, size) for case in some for size in sizes]
    # Simulations make millions of small values and no cycles: looking for those takes a fifth of the time.
    with ProcessPoolExecutor(os.cpu_count(), initializer=gc.disable) as pool:
        yield from pool.map(_judged, asked, chunksize=2)


def _judged(asked: tuple[str, str]) -> Row:
    name, size = asked
    return judge(next(case for case in cases() if case.name == name), size)


def main() -> None:
    """Print a line for each case and the tables; keep the rows if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into benchmarks/simulated.json")
    parser.add_argument("--only", default="", help="cases and families whose name holds this")
    parser.add_argument("--sizes", nargs="*", choices=SIZES, default=SIZES)
    given = parser.parse_args()
    some = [case for case in cases() if given.only in case.name or given.only in case.family]
    if given.write and (len(some) < len(cases()) or tuple(given.sizes) != SIZES):
        parser.error("all cases are published, or none")
    rows = list[Row]()
    for row in judged(some, given.sizes):
        rows.append(row)
        print(_said(row), flush=True)
    print(tables.families(rows))
    if given.write:
        tables.RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def _said(row: Row) -> str:
    true = "healthy" if row.saving is None else f"true {row.saving:.2f}"
    said = "-" if row.predicted is None else " ".join(f"{one:.2f}" for one in row.predicted)
    return (
        f"{row.case} {row.size}: step {row.step:.2f} ms, {true}, said {said}, place {row.place}: {', '.join(row.found)}"
    )


if __name__ == "__main__":
    main()
