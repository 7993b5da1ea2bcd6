"""Whether `diagnose try` measures the truth: `python -m benchmarks.trials [--missing] [--write] [--seconds N]`.

It needs torch, and a machine that does nothing else meanwhile. Four parts:

planted   every planted fault whose fix can be injected: the truth, and right after it what `diagnose try` finds, also
          where the script ends after two seconds
harmful   faults that are injected into fixed trainings, as if they were fixes: the same
nothing   switches that do nothing are screened in healthy controls
runs      healthy controls run as they are, again and again: trials of nothing in pairs are made of these

`--write` keeps each result as it comes, in benchmarks/trials_measured.json. `--missing` measures only what is not
there. So it can be broken off at any time, and gone on with.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from benchmarks.blocks import machine
from benchmarks.planted_cases import LEVELS, ROOT, Case, cases, trials
from benchmarks.trials import nothing, planted, tables
from benchmarks.trials.results import Measured, Row, published, write

PARTS = ("planted", "harmful", "nothing", "runs")

LIKELY_S = 120.0  # What one result takes, until one has taken longer.


def main() -> None:
    """Print a line for each result and the tables; keep the results if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="end before so many have passed")
    parser.add_argument("--case", action="append", help="name of a case or control (repeatable)")
    parser.add_argument("--only", choices=PARTS, action="append", help="of the parts (repeatable)")
    parser.add_argument("--level", choices=LEVELS, action="append", default=[], help="planted faults at this level too")
    parser.add_argument("--controls", type=int, default=5, help="how many")
    parser.add_argument("--write", action="store_true", help="into benchmarks/trials_measured.json")
    given = parser.parse_args()
    os.chdir(ROOT)
    os.environ |= {"OMP_NUM_THREADS": "1", "DIAGNOSE_NO_LEDGER": "1"}
    found, begun_s, longest_s = published(), time.monotonic(), LIKELY_S
    asked = [case for case in cases() if not given.case or case.name in given.case]
    for part, key, make in work(asked, given.only or PARTS, given.level, given.controls):
        if given.missing and not is_missing(found, part, key):
            continue
        now_s = time.monotonic()
        if now_s - begun_s + longest_s > given.seconds:
            print("Time is up; go on with --missing.")
            break
        row = _made(key, make)
        longest_s = max(longest_s, time.monotonic() - now_s)
        if row is None:
            continue
        found = replace(found.with_row(part, row), machine=machine())
        print(tables.line(row), flush=True)
        if given.write:
            write(found)
    print(tables.summary(found))


def work(
    some: list[Case], parts: Sequence[str], levels: Sequence[str], controls: int
) -> Iterator[tuple[str, object, Callable[[], Row]]]:
    """The part and the key of each row, and what makes it."""
    if "planted" in parts:
        for target in planted.targets(some, levels):
            yield "planted", target.key, partial(planted.row, target)
    if "harmful" in parts:
        for planting in trials(some):
            injection = nothing.HARMFUL.get(planting.case.name)
            if injection is not None and planting.level == "medium" and not planting.on_gpu:
                yield "harmful", (planting.case.name, "medium", ""), partial(nothing.harmful, planting, injection)
    for part, make in (("nothing", nothing.nothing), ("runs", nothing.runs)):
        if part in parts:
            for planting in nothing.controls(some)[:controls]:
                yield part, planting.case.name, partial(make, planting)


def is_missing(found: Measured, part: str, key: object) -> bool:
    """Whether there is no such row. What could not be tried is looked at again: there may be a way now."""
    return not any(one.key == key and getattr(one, "tried", True) for one in getattr(found, part))


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
