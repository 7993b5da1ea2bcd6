"""Whether `diagnose try` measures the truth: `python -m benchmarks.trials [--missing] [--write] [--seconds N]`.

It needs torch, and a machine that does nothing else meanwhile. Three parts:

planted   every planted fault whose fix can be injected: `diagnose try`, and the truth right after it
harmful   faults that are injected into fixed trainings, as if they were fixes
equal     trials of nothing: both arms are a healthy control as it is

`--write` keeps each result as it comes, in benchmarks/trials_measured.json. `--missing` measures only what is not
there. So it can be broken off at any time, and gone on with.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.blocks import machine
from benchmarks.planted_cases import LEVELS, ROOT, Case, cases, trials
from benchmarks.trials import equal, planted, tables
from benchmarks.trials.results import Equal, Harmful, Measured, Planted, published, write

Row = Planted | Harmful | Equal

PARTS = ("planted", "harmful", "equal")

LIKELY_S = 180.0
"""What one result takes, until one has taken longer."""


def main() -> None:
    """Print a line for each result and the tables; keep the results if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end before so many have passed")
    parser.add_argument("--case", action="append", help="name of a case or control (repeatable)")
    parser.add_argument("--only", choices=PARTS, action="append", help="of the parts (repeatable)")
    parser.add_argument("--level", choices=LEVELS, action="append", default=[], help="planted faults at this level too")
    parser.add_argument("--controls", type=int, default=20, help=f"how many, with {equal.EACH} trials each")
    parser.add_argument("--write", action="store_true", help="into benchmarks/trials_measured.json")
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "DIAGNOSE_NO_LEDGER": "1"}
    found, begun_s, longest_s = published(), time.monotonic(), LIKELY_S
    asked = [case for case in cases() if not given.case or case.name in given.case]
    for key, make in work(asked, given.only or PARTS, given.level, given.controls):
        if given.missing and key in done(found):
            continue
        now_s = time.monotonic()
        if now_s - begun_s + longest_s > given.seconds:
            print("Time is up; go on with --missing.")
            break
        row = _made(key, make)
        longest_s = max(longest_s, time.monotonic() - now_s)
        if row is None:
            continue
        found = replace(found.with_row(row), machine=machine())
        print(tables.line(row), flush=True)
        if given.write:
            write(found)
    print(tables.summary(found))


def work(
    some: list[Case], parts: Sequence[str], levels: Sequence[str], controls: int
) -> Iterator[tuple[object, Callable[[], Row]]]:
    """The key of each row, and what makes it."""
    if "planted" in parts:
        for target in planted.targets(some, levels):
            yield target.key, partial(planted.row, target)
    if "harmful" in parts:
        for planting in trials(some):
            injection = equal.HARMFUL.get(planting.case.name)
            if injection is not None and planting.level == "medium" and not planting.on_gpu:
                yield (planting.case.name, injection), partial(equal.harmful, planting, injection)
    if "equal" in parts:
        for planting in equal.controls(some)[:controls]:
            yield planting.case.name, partial(equal.equal, planting)


def done(found: Measured) -> set[object]:
    """Keys of rows that need not be made again. What could not be tried is looked at again: there may be a way now."""
    tried = {one.key for one in found.planted if one.tried}
    return {*tried, *(one.key for one in found.harmful), *(one.key for one in found.equal)}


def _made(key: object, make: Callable[[], Row]) -> Row | None:
    """A row, or a note on why there is none: one that fails must not cost the others their turn."""
    try:
        return make()
    except Exception as error:
        print(f"{key}: failed: {type(error).__name__}: {error}", flush=True)
        return None


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("Interrupted; go on with --missing.")
