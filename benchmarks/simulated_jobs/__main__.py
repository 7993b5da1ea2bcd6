"""Diagnose traces of simulated jobs of many ranks: `python -m benchmarks.simulated_jobs [--write] [--only NAME]`.

It needs no GPU and no recording. `--write` puts the rows into benchmarks/simulated_jobs.json.
"""

import argparse
import gc
import os
from concurrent.futures import ProcessPoolExecutor

import msgspec

from benchmarks.simulated_jobs import tables
from benchmarks.simulated_jobs.cases import cases
from benchmarks.simulated_jobs.judge import Row, judge


def _judged(name: str) -> Row:
    return judge(next(case for case in cases() if case.name == name))


def main() -> None:
    """Print a line for each case and the tables; keep the rows if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="into benchmarks/simulated_jobs.json")
    parser.add_argument("--only", default="", help="cases and families whose name holds this")
    given = parser.parse_args()
    some = [case for case in cases() if given.only in case.name or given.only in case.family]
    if given.write and len(some) < len(cases()):
        parser.error("all cases are published, or none")
    rows = list[Row]()
    # Simulations make millions of small values and no cycles: looking for those takes a fifth of the time.
    with ProcessPoolExecutor(os.cpu_count(), initializer=gc.disable) as pool:
        for row in pool.map(_judged, [case.name for case in some]):
            rows.append(row)
            print(_said(row), flush=True)
    print(tables.families(rows))
    if given.write:
        tables.RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def _said(row: Row) -> str:
    true = "healthy" if row.saving is None else f"true {row.saving:.2f}"
    said = "-" if row.predicted is None else " ".join(f"{one:.2f}" for one in row.predicted)
    step = f"step {row.step:.2f} ms (recorded {row.recorded:.2f}, told {row.told:.2f})"
    return (
        f"{row.case}: {step}, {true}, said {said}, place {row.place}, most {row.promised:.1%}: {', '.join(row.found)}"
    )


if __name__ == "__main__":
    main()
