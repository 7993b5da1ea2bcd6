"""What the time of a run goes to, in parts that add up to it."""

from __future__ import annotations

from diagnose.contracts.watched_run import Epoch, RunPart, RunPartKind
from diagnose.facts.watched.epochs import known_epochs
from diagnose.facts.watched.windows import counted, evaluates_in_steps, evaluations, steps_of, total
from diagnose.trace.run_log import RunLog


def parts(log: RunLog) -> tuple[RunPart, ...]:
    """The largest first. What the log has lost is a part as well."""
    windows, start, last = log.windows, log.start, log.last
    in_steps = {name: total(windows, name) for name in ("step", "loader", "collection", "compilation", "outside")}
    save = total(windows, "save") + start.get("save", 0) + last.get("save", 0)
    evaluation, evaluated = evaluations(log)
    training = in_steps["step"] - in_steps["loader"] - in_steps["collection"] - in_steps["compilation"]
    training += total(windows, "evaluation") * evaluates_in_steps(log)
    saves = counted(windows, "save") + bool(start.get("save")) + bool(last.get("save"))
    found = {
        RunPartKind.TRAINING: (training, steps_of(log) - 1 - counted(windows, "recording")),
        RunPartKind.LOADER: (in_steps["loader"], None),
        RunPartKind.EVALUATION: (evaluation, evaluated),
        RunPartKind.SAVE: (save, saves),
        RunPartKind.COLLECTION: (in_steps["collection"], None),
        RunPartKind.START: (start.get("step", 0) + in_steps["compilation"], None),
        RunPartKind.RECORDING: (total(windows, "recording") + last.get("recording", 0), counted(windows, "recording")),
        RunPartKind.OUTSIDE: (in_steps["outside"] + last.get("step", 0), None),
    }
    known = sum(ns for ns, _ in found.values())
    found[RunPartKind.LOST] = (log.length_ns - known, None)
    first = _loader_in_first_epoch(log)
    made = [
        RunPart(kind, max(ns, 0), count, first if kind is RunPartKind.LOADER else None)
        for kind, (ns, count) in found.items()
        if ns > 0
    ]
    return tuple(sorted(made, key=lambda part: -part.ns))


def epochs(log: RunLog) -> tuple[Epoch, ...]:
    """Those that are known one by one, with steps besides the run's first, in order."""
    return tuple(
        Epoch(one.first_step, one.began_ns, one.steps, one.step_ns // one.steps, one.loader_ns // one.steps)
        for one in known_epochs(log)
    )


def _loader_in_first_epoch(log: RunLog) -> int | None:
    known = known_epochs(log)
    return known[0].loader_ns if len(known) > 1 and known[0].first_step <= 1 else None
