"""Whether `diagnose watch` names planted faults, and what they cost: `python -m benchmarks.watching.planted`.

Each case of `trainings.py` runs to its end twice, with its fault and without, both watched. Its truth is what the
place of the fault takes more, by a clock in the script, or how much longer the run takes. The logs are kept: `--again`
reads them once more, by what the analysis has become. `--missing` runs what is not there yet, `--write` keeps each
result as it comes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.accuracy_tables import table
from diagnose.contracts.watched_run import RunBasis, RunFinding
from diagnose.source.run_log import earlier_attempts, logs_in, read
from diagnose.watched.assembly import watched_run

RESULTS = Path(__file__).with_name("planted.json")
LOGS = Path(__file__).with_name("planted")
TRAININGS = Path(__file__).with_name("trainings.py")
LIMIT_S = 300.0
DASH = "-"


@dataclass(frozen=True)
class Case:
    """A fault, or none."""

    name: str  # In `trainings.py`.
    fault: str
    kinds: tuple[str, ...] = ()  # Of findings that name it. Empty where there is no fault, and all findings are wrong.
    parts: tuple[str, ...] = ("training",)  # Of the run, that its time goes to.
    clock: str = ""  # Of the script, that has the fault's time. Empty: only the run's length tells it.
    ranks: int = 1
    restarts: int = 0

    @property
    def healthy(self) -> bool:
        """It has no fault."""
        return not self.kinds


CASES = (
    Case("cold_cache", "cold file cache", ("slow_first_epoch",), ("loader",), clock="wait"),
    Case("slow_evaluation", "evaluation row by row", ("evaluation",), ("evaluation",), clock="after_epoch"),
    Case("frequent_evaluation", "evaluation every 25 steps", ("evaluation",), ("evaluation",), clock="after_step"),
    Case(
        "evaluation_waits",
        "evaluation waits for its loader",
        ("evaluation_data_wait",),
        ("evaluation",),
        clock="after_epoch",
    ),
    Case(
        "blocking_checkpoints",
        "checkpoints of 200 MB in the training thread",
        ("checkpoints",),
        ("save",),
        clock="after_step",
    ),
    Case("frequent_checkpoints", "a checkpoint every 5 steps", ("checkpoints",), ("save",), clock="after_step"),
    Case("loader_stutter", "every 50th batch is slow", ("outlier_steps",), ("loader",), clock="wait"),
    Case("step_stutter", "quantiles of weights every 50 steps, in a step", ("outlier_steps",), clock="within"),
    Case("logging_stutter", "logging every 50 steps, between steps", ("outside",), ("outside",), clock="after_step"),
    Case("memory_leak", "gradients that are kept (memory)", ("growing_memory",), clock="within"),
    Case("growing_metric", "accuracy over all predictions so far", ("growing_steps",), clock="within"),
    Case("uncut_graph", "an average whose graph is never cut", ("growing_steps",), clock="backward"),
    Case("searched_list", "a list that is searched", ("growing_steps",), clock="within"),
    Case("suddenly_slower", "slower from half of the run on", ("slower_steps",), clock="within"),
    Case("workers_restarted", "workers start anew in each epoch", ("epoch_starts",), ("loader",), clock="wait"),
    Case("collections", "a garbage collection every 100 steps", ("collection",), ("collection",), clock="within"),
    Case("idle_epoch_ends", "a pause after each epoch", ("outside",), ("outside",), clock="after_epoch"),
    Case("long_pause", "one pause of 5 s in a step", ("outlier_steps",), clock="within"),
    Case("restarts", "killed twice, goes on from a checkpoint", ("restarts",), ("start", "training"), restarts=2),
    Case("straggler_comes", "one of two ranks slower from half of the run on", ("straggler",), ranks=2),
    Case("straggler_stays", "one of four ranks with a slow loader", ("straggler",), ranks=4),
    Case("healthy", "evaluations and checkpoints"),
    Case("healthy_plain", "steps alone, no DataLoader"),
    Case("healthy_workers", "a loader with two workers"),
    Case("healthy_ranks", "two ranks", ranks=2),
)
"""To follow the findings of the analysis, change `kinds`, and `_said`."""

BY_NAME = {case.name: case for case in CASES}


class Said(msgspec.Struct, frozen=True):
    """A finding. `cost_s` is None where it tells none."""

    kind: str
    cost_s: float | None


class Side(msgspec.Struct, frozen=True):
    """A run, with the fault or without: by a clock in it, and by its log."""

    s: float
    spent_s: dict[str, float]  # By the clocks where faults are.
    resident_bytes: int  # At its end.
    parts_s: dict[str, float]
    said: tuple[Said, ...]


class Row(msgspec.Struct, frozen=True):
    """A case. One without a fault has only the one side."""

    case: str
    bad: Side
    fixed: Side | None

    @property
    def truth_s(self) -> float:
        """What the fault costs, by the clock that is there, or by how much longer the run is."""
        if self.fixed is None:
            return 0.0
        name = BY_NAME[self.case].clock
        return self.bad.spent_s[name] - self.fixed.spent_s[name] if name else self.longer_s

    @property
    def longer_s(self) -> float:
        """By so much the run with the fault is."""
        return 0.0 if self.fixed is None else self.bad.s - self.fixed.s


def side(case: Case, fixed: bool, logs: Path) -> Side:
    """Run it, watched, and keep its logs there. Raises CalledProcessError, TimeoutExpired."""
    words = [str(TRAININGS), case.name, *(["--fixed"] if fixed else [])]
    if case.ranks > 1 or case.restarts:
        launcher = ["--standalone", "--nproc-per-node", str(case.ranks), "--max-restarts", str(case.restarts)]
        words = ["--", sys.executable, "-m", "torch.distributed.run", *launcher, *words]
    command = [sys.executable, "-m", "diagnose", "watch", "-q", "--no-analyze", "-o", "log", *words]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(command, cwd=folder, env=environment, check=True, timeout=LIMIT_S, stdout=sys.stderr)
        told = json.loads(Path(folder, "told.json").read_text(encoding="utf-8"))
        shutil.rmtree(logs, ignore_errors=True)
        logs.mkdir(parents=True)
        for path in Path(folder, "log").glob("*.watch*"):
            shutil.copy(path, logs)
    return analysed(logs, told["s"], told["spent_s"], told["resident_bytes"])


def analysed(logs: Path, s: float, spent_s: dict[str, float], resident_bytes: int) -> Side:
    """What the analysis of today says of the logs of a run."""
    paths = logs_in(logs)
    found = watched_run([*map(read, paths)], [*map(read, earlier_attempts(paths[0]))])
    parts = {part.kind.value: part.ns / 1e9 for part in found.ranks[0].parts}
    return Side(s, spent_s, resident_bytes, parts, tuple(map(_said, found.findings)))


def _said(finding: RunFinding) -> Said:
    """What it costs: the time that it is about, else what the run would take less."""
    saving = finding.saving
    if saving.basis is RunBasis.NONE:
        return Said(finding.kind, None)
    if saving.basis is RunBasis.COMPARED:
        return Said(finding.kind, saving.likely_ns / 1e9)
    spent_ns = next((one.value for one in finding.evidence if one.primary and one.unit == "ns"), None) or 0
    return Said(finding.kind, max(spent_ns, saving.high_ns) / 1e9)


def measured(case: Case) -> Row:
    """Run both sides. Raises CalledProcessError, TimeoutExpired."""
    bad = side(case, False, LOGS / case.name / "bad")
    return Row(case.name, bad, None if case.healthy else side(case, True, LOGS / case.name / "fixed"))


def again(row: Row) -> Row:
    """By its logs."""

    def side_again(name: str, one: Side) -> Side:
        return analysed(LOGS / row.case / name, one.s, one.spent_s, one.resident_bytes)

    return Row(row.case, side_again("bad", row.bad), row.fixed and side_again("fixed", row.fixed))


def place(row: Row) -> int | None:
    """Of the first finding that names the fault, from 1."""
    kinds = BY_NAME[row.case].kinds
    return next((at for at, one in enumerate(row.bad.said, start=1) if one.kind in kinds), None)


def cost_s(row: Row) -> float | None:
    """That this finding tells."""
    at = place(row)
    return None if at is None else row.bad.said[at - 1].cost_s


def grown_s(row: Row) -> float:
    """By how much the fault's parts are larger than in the run without it."""
    assert row.fixed is not None
    return sum(row.bad.parts_s.get(part, 0.0) - row.fixed.parts_s.get(part, 0.0) for part in BY_NAME[row.case].parts)


def faults(rows: Sequence[Row]) -> str:
    """A line for each planted fault, in Markdown."""
    head = ["planted", "costs", "run longer by", "named", "cost told", "error", "in the parts", "error"]
    return table(head, [_line(row) for row in rows if row.fixed is not None])


def _line(row: Row) -> list[str]:
    at, told, truth = place(row), cost_s(row), row.truth_s
    named = "no" if at is None else "first" if at == 1 else f"number {at}"
    grown = grown_s(row)
    return [
        BY_NAME[row.case].fault,
        f"{truth:.1f} s",
        f"{row.longer_s:.1f} s",
        named,
        DASH if told is None else f"{told:.1f} s",
        DASH if told is None else _error(told, truth),
        f"{grown:.1f} s",
        _error(grown, truth),
    ]


def _error(told_s: float, truth_s: float) -> str:
    return f"{(told_s - truth_s) / truth_s:+.0%}" if abs(truth_s) >= 1 else DASH


def controls(rows: Sequence[Row]) -> str:
    """A line for each run without a fault of which something was said, and how many there are."""
    runs = [(BY_NAME[row.case].fault, row.bad) for row in rows if row.fixed is None]
    runs += [(f"{BY_NAME[row.case].fault}, fixed", row.fixed) for row in rows if row.fixed is not None]
    wrong = [(name, run) for name, run in runs if run.said]
    said = f"Of {len(runs)} runs without a fault, {len(wrong)} had a finding{':' if wrong else '.'}"
    return said if not wrong else f"{said}\n\n{table(['run', 'findings'], [[n, _all(r)] for n, r in wrong], texts=2)}"


def _all(run: Side) -> str:
    return ", ".join(f"`{one.kind}`" + (f" ({one.cost_s:.1f} s)" if one.cost_s else "") for one in run.said)


def in_short(rows: Sequence[Row]) -> str:
    """How many were named, and how far costs are off."""
    planted = [row for row in rows if row.fixed is not None]
    first, named = sum(place(row) == 1 for row in planted), sum(place(row) is not None for row in planted)
    return f"Of {len(planted)} planted faults {first} were named first, and {named} at all."


def published() -> tuple[Row, ...]:
    """What was measured; nothing if there is no such file."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...]) if RESULTS.exists() else ()


def shown() -> str:
    """All of it, in Markdown."""
    rows = published()
    return "\n\n".join((in_short(rows), faults(rows), controls(rows))) if rows else "Nothing has been measured yet."


def main() -> None:
    """Run what is asked for; takes 20 minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(BY_NAME), help="(repeatable)")
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--again", action="store_true", help="run nothing; read the logs that are there")
    parser.add_argument("--write", action="store_true", help="into benchmarks/watching/planted.json")
    given = parser.parse_args()
    known = {row.case: row for row in published()}
    for case in CASES:
        if (given.only and case.name not in given.only) or (given.missing and case.name in known):
            continue
        if given.again and case.name not in known:
            continue
        try:
            known[case.name] = again(known[case.name]) if given.again else measured(case)
        except (subprocess.SubprocessError, OSError) as error:  # One that fails must not cost the others their turn.
            print(f"{case.name}: {error}", flush=True)
            continue
        print(known[case.name], flush=True)
        if given.write:
            rows = [known[one.name] for one in CASES if one.name in known]
            RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")
    rows = [known[one.name] for one in CASES if one.name in known]
    print("\n\n".join((in_short(rows), faults(rows), controls(rows))))


if __name__ == "__main__":
    main()
