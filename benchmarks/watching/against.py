"""TraceML on the same trainings: `python -m benchmarks.watching.against TRACEML`, the command `traceml` of 0.5.

It stays in an environment of its own, with torch. It sees a loop of one's own by two calls in it: `traced.py` makes
these. `--missing` runs what is not there yet, `--write` keeps each result as it comes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from benchmarks.accuracy_tables import table
from benchmarks.watching.planted import BY_NAME, CASES, DASH, LIMIT_S, place
from benchmarks.watching.planted import published as planted

RESULTS = Path(__file__).with_name("against.json")
HERE = Path(__file__).parent
ROUNDS, STEPS = 4, 10_000

WAITS, COMPUTES = ("INPUT_BOUND",), ("RESIDUAL_HEAVY", "COMPUTE_BOUND")
NAMES = {
    "cold_cache": WAITS,
    "evaluation_waits": WAITS,
    "loader_stutter": WAITS,
    "workers_restarted": WAITS,
    "step_stutter": COMPUTES[:1],
    "growing_metric": COMPUTES[:1],
    "searched_list": COMPUTES[:1],
    "suddenly_slower": COMPUTES[:1],
    "long_pause": COMPUTES[:1],
    "collections": COMPUTES[:1],
    "uncut_graph": COMPUTES,
    "memory_leak": ("HIGH_PROCESS_RSS",),
    "straggler_comes": ("STRAGGLER", "COMPUTE_STRAGGLER"),
    "straggler_stays": ("STRAGGLER", "INPUT_STRAGGLER"),
}
"""Kinds of its DIAGNOSIS.md that are where the fault's time goes. It has none for time between steps, and restarts."""


class Verdict(msgspec.Struct, frozen=True):
    """What it says first of a case with its fault, and the kinds of all else that is no mere information."""

    case: str
    kind: str
    severity: str
    summary: str
    others: tuple[str, ...]


class Cost(msgspec.Struct, frozen=True):
    """Of a step of `loop.py tiny`, in us by run."""

    tool: str
    wall_us: tuple[float, ...]
    cpu_us: tuple[float, ...]  # Of the process that trains.


class Published(msgspec.Struct, frozen=True):
    """What was measured."""

    verdicts: tuple[Verdict, ...] = ()
    costs: tuple[Cost, ...] = ()


def verdict(traceml: Path, name: str) -> Verdict:
    """Raises CalledProcessError, TimeoutExpired."""
    case = BY_NAME[name]
    with tempfile.TemporaryDirectory() as folder:
        _traced(traceml, folder, ["trainings", name], case.ranks)
        found = json.loads(Path(folder, "logs", "run", "final_summary.json").read_text(encoding="utf-8"))
    first = found["primary_diagnosis"]
    sections = [found[one] for one in ("system", "process", "step_time", "step_memory")]
    kinds = [issue["kind"] for one in sections for issue in one["issues"] if issue["severity"] != "info"]
    others = tuple(sorted({*kinds} - {first["kind"]}))
    return Verdict(name, first["kind"], first["severity"], first["summary"], others)


def _traced(traceml: Path, folder: str, words: list[str], ranks: int = 1) -> str:
    asked = ["run", "--run-name", "run", "--nproc-per-node", str(ranks), str(HERE / "traced.py"), "--args", *words]
    environment = _environment() | {"PATH": f"{traceml.parent}{os.pathsep}{os.environ['PATH']}"}
    command = [str(traceml), *asked]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, timeout=LIMIT_S, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def _environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(HERE.parents[1])}


def costs(traceml: Path) -> tuple[Cost, ...]:
    """Alone, watched and traced in turn."""
    taken: dict[str, list[tuple[float, float]]] = {"alone": [], "diagnose watch": [], "TraceML": []}
    watch = [sys.executable, "-m", "diagnose", "watch", "-q", "--no-analyze", "-o", "log"]
    loop = ["tiny", str(STEPS)]
    for at in range(ROUNDS * len(taken)):
        tool = list(taken)[at % len(taken)]
        with tempfile.TemporaryDirectory() as folder:
            if tool == "TraceML":
                said = _traced(traceml, folder, ["loop", *loop])
            else:
                words = [*([sys.executable] if tool == "alone" else watch), str(HERE / "loop.py"), *loop]
                done = subprocess.run(
                    words, cwd=folder, env=_environment(), check=True, stdout=subprocess.PIPE, text=True
                )
                said = done.stdout
        found = re.search(r"([\d.]+) ([\d.]+) -?0x", said)
        assert found is not None, said
        taken[tool].append((float(found[1]), float(found[2])))
    return tuple(
        Cost(tool, tuple(wall for wall, _ in some), tuple(cpu for _, cpu in some)) for tool, some in taken.items()
    )


def faults(found: Published) -> str:
    """A line for each planted fault: what each names."""
    rows = {row.case: row for row in planted()}
    lines = []
    for one in found.verdicts:
        if not BY_NAME[one.case].healthy:
            named = "yes" if one.kind in NAMES.get(one.case, ()) else "no"
            at = place(rows[one.case]) if one.case in rows else None
            ours = DASH if one.case not in rows else "no" if at is None else "first" if at == 1 else f"number {at}"
            lines.append([BY_NAME[one.case].fault, ours, named, f"{one.kind} ({one.severity})"])
    controls = [f"{BY_NAME[one.case].fault}: {one.kind}" for one in found.verdicts if BY_NAME[one.case].healthy]
    head = ["planted", "`diagnose watch` names it", "TraceML names where it is", "TraceML's verdict"]
    return f"{table(head, lines, texts=4)}\n\nTraceML's verdicts without a fault: {'; '.join(controls) or 'none'}."


def cost(found: Published) -> str:
    """A line for each tool: medians, of a step."""
    base: Any = next((one for one in found.costs if one.tool == "alone"), None)
    lines = []
    for one in found.costs:
        wall, cpu = median(one.wall_us), median(one.cpu_us)
        more = DASH if one is base else f"{cpu - median(base.cpu_us):.0f} µs"
        lines.append([one.tool, f"{wall:.0f} µs", f"{cpu:.0f} µs", more])
    return table(["", "step", "CPU time of a step", "more CPU time"], lines)


def published() -> Published:
    """Nothing if there is no such file."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Published) if RESULTS.exists() else Published()


def shown() -> str:
    """All of it, in Markdown."""
    found = published()
    if not found.costs:
        return "Nothing has been measured yet."
    ran = sum(not BY_NAME[one.case].healthy for one in found.verdicts)
    planted_in_all = sum(not case.healthy for case in CASES)
    said = f"TraceML ran on {ran} of the {planted_in_all} planted faults."
    return "\n\n".join((cost(found), said, faults(found)))


def main() -> None:
    """Run what is asked for; takes 15 minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traceml", type=Path)
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--write", action="store_true", help="into benchmarks/watching/against.json")
    given = parser.parse_args()
    before = published()
    known, taken = {one.case: one for one in before.verdicts}, before.costs
    if not (given.missing and taken):
        taken = costs(given.traceml)
    _keep(known.values(), taken, given.write)
    for case in CASES:
        if case.restarts or (given.missing and case.name in known):
            continue  # It has no --max-restarts.
        try:
            known[case.name] = verdict(given.traceml, case.name)
        except (subprocess.SubprocessError, OSError) as error:  # One that fails must not cost the others their turn.
            print(f"{case.name}: {error}", flush=True)
            continue
        _keep(known.values(), taken, given.write)
    print(faults(Published(tuple(known.values()), taken)))


def _keep(verdicts: Any, taken: Sequence[Cost], write: bool) -> None:
    by_case = {one.case: one for one in verdicts}
    found = Published(tuple(by_case[one.name] for one in CASES if one.name in by_case), tuple(taken))
    print(*found.verdicts[-1:], cost(found), sep="\n", flush=True)
    if write:
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


if __name__ == "__main__":
    main()
