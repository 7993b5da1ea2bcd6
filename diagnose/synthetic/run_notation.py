"""Logs of watched runs drawn in a few lines of text: the notation of the examples of rules on whole runs.

    900 steps of 20, loader 8, every 50 epoch    # of 20 ms, 8 of which wait for data; each 50th begins an epoch
    100 steps of 20 to 60, every 10 save 400     # rising from 20 to 60 ms; at each 10th a checkpoint takes 400 ms more
    500 steps of 20, memory 1000 to 1300         # MB of resident memory
    ---                                          # what follows is another rank
    === 4000                                     # the process was killed; 4 s later another took its place

Times are in ms, and named as in an Interval of the recorder. A time of a step is part of it, and one with `every` makes
the step longer, if it is none of `save` and `evaluation`. The recorder's own code makes the log, and the real reader
reads it. A run starts up for a second.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from diagnose.capture.agent.watch.log import framed
from diagnose.capture.agent.watch.step_times import Interval
from diagnose.capture.agent.watch.windows import COLUMNS, Windows
from diagnose.facts.watched.base import RunFacts
from diagnose.source.run_log import read
from diagnose.synthetic.notation import DrawingError
from diagnose.trace.run_log import RunLog

START_NS = 1_000_000_000

_TIME = r"(\d+(?:\.\d+)?)(?: to (\d+(?:\.\d+)?))?"
_STEPS, _WORD = re.compile(rf"(\d+) steps of {_TIME}"), re.compile(rf"(?:every (\d+) )?([a-z_]+)(?: {_TIME})?")

Step = tuple[Interval, dict[str, float]]  # With figures of the process at its end.


def run_of(text: str) -> RunFacts:
    """The logs of a drawing. Raises DrawingError."""
    parts = re.split(r"(?m)^ *=== *(\d*).*$", text)
    earlier, began_ns = list[RunLog](), 0
    with tempfile.TemporaryDirectory() as folder:
        for attempt, pause_ms in zip(parts[:-1:2], parts[1::2], strict=True):
            earlier.append(written(Path(folder), _steps(attempt), began_unix_ns=began_ns, ended=False))
            began_ns += earlier[-1].length_ns + int(pause_ms or 0) * 1_000_000
        ranks = re.split(r"(?m)^ *---.*$", parts[-1])
        logs = [written(Path(folder), _steps(one), at, len(ranks), began_ns) for at, one in enumerate(ranks)]
    return RunFacts(logs, earlier)


def interval(step: int, **more: int | bool) -> Interval:
    """Of a step in ns; `ended` is filled in by `written`."""
    known = dict.fromkeys(Interval._fields, 0) | {"step": step, "epoch": False} | more
    return Interval(**known)  # type: ignore[arg-type]


def written(
    folder: Path, steps: Iterable[Step], rank: int = 0, world_size: int = 1, began_unix_ns: int = 0, ended: bool = True
) -> RunLog:
    """The log as the recorder writes it."""
    now, made, records = START_NS, Windows(0), list[list[object]]()
    first = interval(START_NS)._replace(ended=now)
    made.started(first)
    for one, figures in steps:
        now += one.step + one.save + one.evaluation
        made.take([one._replace(ended=now)])
        made.looked(figures)
        if made.detailed:
            records.append(["steps", made.detailed])
            made.detailed = []
        if made.long_enough(now):
            records.append(made.record())
            made.next()
    records.append(made.record(last=True))
    if ended:
        records.append(["end", "itself", now, [0] * len(COLUMNS), "optimizer", []])
    row = [int(getattr(first, name, 0)) for name in COLUMNS]
    path = folder / f"rank{rank}.watch"
    begin = ["begin", 1, rank, world_size, 99, began_unix_ns, [*COLUMNS], row]
    path.write_bytes(b"".join(map(framed, [begin, *records])))
    return read(path)


def _steps(text: str) -> Iterator[Step]:
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        steps, *words = (part.strip() for part in line.split(","))
        found, items = _STEPS.fullmatch(steps), [_WORD.fullmatch(word) for word in words]
        if found is None or not all(items):
            raise DrawingError(f"{line!r} is no line of a run.")
        count = int(found[1])
        for at in range(count):
            yield _step(_at(found, 2, at / count), [one for one in items if one and _is_now(one, at)], at / count)


def _step(step_ns: int, items: list[re.Match[str]], share: float) -> Step:
    spent, figures = dict[str, int](), dict[str, float]()
    for one in items:
        every, name = one[1], one[2]
        if name == "memory":
            figures["resident_bytes"] = _at(one, 3, share)
        elif name not in Interval._fields:
            raise DrawingError(f"{name!r} is no time of a step.")
        else:
            ns = 1 if name == "epoch" else _at(one, 3, share)
            spent[name] = spent.get(name, 0) + ns
            step_ns += ns * (every is not None and name not in ("epoch", "save", "evaluation", "evaluation_loader"))
    return interval(step_ns, **spent), figures


def _is_now(item: re.Match[str], at: int) -> bool:
    return item[1] is None or (at + 1) % int(item[1]) == 0


def _at(found: re.Match[str], group: int, share: float) -> int:
    """The number in a group, on its way to the next one, in millionths."""
    first = float(found[group] or 0)
    return int(1e6 * (first + share * (float(found[group + 1] or first) - first)))
