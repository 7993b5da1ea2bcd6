"""Diagnose real jobs of several ranks: `python -m benchmarks.jobs [--write] [--record] [--measure] [--only NAME]`.

It reads recordings of sample_traces/jobs, and those that `--record` makes in build/recordings/jobs of jobs which the
repository does not keep. Of those that are not there, the published row stays. `--record` and `--measure` need torch.
`--write` puts the rows into benchmarks/jobs.json.
"""

import argparse

import msgspec

from benchmarks.jobs import tables
from benchmarks.jobs.cases import CASES
from benchmarks.jobs.judge import Row, judge
from benchmarks.jobs.truth import measure, record, truths


def main() -> None:
    """Print a line for each job and the tables; keep the rows if asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="into benchmarks/jobs.json")
    parser.add_argument("--record", action="store_true", help="record the jobs anew")
    parser.add_argument("--measure", action="store_true", help="measure anew what fixes gain")
    parser.add_argument("--missing", action="store_true", help="measure and record only what is not there")
    parser.add_argument("--only", default="", help="jobs whose name holds this")
    given = parser.parse_args()
    asked = [case for case in CASES if given.only in case.name]
    for case in asked:
        if given.measure and not case.healthy and not (given.missing and case.name in truths()):
            truth = measure(case)
            print(f"{case.name}: x {truth.speedup:.2f} ({truth.low:.2f} to {truth.high:.2f})", flush=True)
        if given.record and not (given.missing and case.recording.is_dir()):
            size = sum(path.stat().st_size for path in record(case).iterdir())
            print(f"{case.name}: {size / 1000:.0f} kB", flush=True)
    measured, rows = truths(), {table.case: table for table in tables.published()}
    for case in asked:
        if case.recording.is_dir():
            rows[case.name] = judge(case, measured.get(case.name))
            print(_said(rows[case.name]), flush=True)
    found = [rows[case.name] for case in CASES if case.name in rows]
    print(tables.summary(found))
    if given.write:
        tables.RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def _said(row: Row) -> str:
    true = "healthy" if row.healthy else "not measured" if row.saved is None else f"saved {row.saved:.1%}"
    said = "-" if row.predicted is None else " ".join(f"{one / row.step:.1%}" for one in row.predicted)
    return f"{row.case}: step {row.step:.1f} ms, {true}, said {said}, place {row.place}: {', '.join(row.found)}"


if __name__ == "__main__":
    main()
