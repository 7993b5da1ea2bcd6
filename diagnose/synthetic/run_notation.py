"""Logs of watched runs drawn in a few lines of text: the notation of the examples of rules on whole runs.

    900 steps of 20, loader 8, every 50 epoch    # of 20 ms, 8 of which wait for data; each 50th begins an epoch
    100 steps of 20 to 60, every 10 save 400     # rising from 20 to 60 ms; at each 10th a checkpoint takes 400 ms more
    500 steps of 20, memory 1000 to 1300         # MB of resident memory
    batches made in 30 by 2 workers, 8 cores     # what the recorder measured of the loader
    ---                                          # what follows is another rank
    === 4000                                     # the process was killed; 4 s later another took its place

Times are in ms, and named as in an Interval of the recorder. Those of a step are parts of it; with `every` they make
the step longer. The recorder's own code makes the log, and the real reader reads it. A run starts up for a second.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from diagnose.capture.agent.watch.log import framed
from diagnose.capture.agent.watch.step_times import Interval
from diagnose.capture.agent.watch.windows import COLUMNS, Windows
from diagnose.facts.watched.log import RunFacts
from diagnose.source.run_log import read
from diagnose.synthetic.notation import DrawingError
from diagnose.trace.run_log import RunLog

START_NS = 1_000_000_000
APART = ("epoch", "save", "evaluation", "evaluation_loader")  # That make no step longer.

_TIME = r"(?P<first>\d+(?:\.\d+)?)(?: to (?P<last>\d+(?:\.\d+)?))?"
_STEPS = re.compile(rf"(?P<count>\d+) steps of {_TIME}")
_WORD = re.compile(rf"(?:every (?P<every>\d+) )?(?P<name>{'|'.join(Interval._fields)}|memory)(?: {_TIME})?")

_BATCHES = re.compile(r"batches made in (?P<first>\d+(?:\.\d+)?) by (?P<workers>\d+) workers, (?P<cores>\d+) cores")

Step = tuple[Interval, dict[str, float]]  # With figures of the process at its end.


def run_of(text: str) -> RunFacts:
    """The logs of a drawing. Raises DrawingError."""
    *before, last = re.split(r"(?m)^ *===.*$", text)
    pauses, earlier, began_ns = re.findall(r"(?m)^ *=== *(\d+)", text), list[RunLog](), 0
    with tempfile.TemporaryDirectory() as folder:
        for attempt, pause_ms in zip(before, pauses, strict=True):
            earlier.append(written(Path(folder), _steps(attempt), began_unix_ns=began_ns, ended=False))
            began_ns += earlier[-1].length_ns + 1_000_000 * int(pause_ms)
        ranks = re.split(r"(?m)^ *---.*$", last)
        logs = [
            written(Path(folder), _steps(one), at, len(ranks), began_ns, loading=_loading(one))
            for at, one in enumerate(ranks)
        ]
    return RunFacts(logs, earlier)


def interval(step: int, **more: int | bool) -> Interval:
    """An Interval of a step of so many ns, with these other fields; all else is 0, as `ended`, which `written` sets."""
    return Interval(**dict.fromkeys(Interval._fields, 0) | {"step": step, "epoch": False} | more)  # type: ignore[arg-type]


def written(
    folder: Path,
    steps: Iterable[Step],
    rank: int = 0,
    world_size: int = 1,
    began_unix_ns: int = 0,
    ended: bool = True,
    loading: list[object] | None = None,
) -> RunLog:
    """The log of these steps, written into the folder by the recorder's code, and read back."""
    now, made, first = START_NS, Windows(0), interval(START_NS)._replace(ended=START_NS)
    row = [int(getattr(first, name, 0)) for name in COLUMNS]
    records: list[list[object]] = [["begin", 1, rank, world_size, 99, began_unix_ns, [*COLUMNS], row]]
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
        records.append(["end", "itself", now, [0] * len(COLUMNS), "optimizer", [], loading])
    path = folder / f"rank{rank}.watch"
    path.write_bytes(b"".join(map(framed, records)))
    return read(path)


def _loading(text: str) -> list[object] | None:
    """What a line of the drawing says of batches, as in the log; None without one."""
    if (found := _BATCHES.search(text)) is None:
        return None
    loader = {"fetch_ns": _millionths(found, 0.0), "num_workers": int(found["workers"])}
    return [loader, 1, 1, int(found["cores"]), 1]


def _steps(text: str) -> Iterator[Step]:
    """The steps that a drawing's lines make, one by one. Raises DrawingError."""
    lines = filter(None, (line.partition("#")[0].strip() for line in text.splitlines()))
    for line in (line for line in lines if not _BATCHES.fullmatch(line)):
        first, *words = line.split(",")
        steps, items = _STEPS.fullmatch(first.strip()), [_WORD.fullmatch(word.strip()) for word in words]
        if steps is None or not all(items):
            raise DrawingError(f"{line!r} is no line of a run.")
        count = int(steps["count"])
        for at in range(count):
            spent, figures = Counter(step=_millionths(steps, at / count)), dict[str, float]()
            for one in (one for one in items if one and (at + 1) % int(one["every"] or 1) == 0):
                name, value = one["name"], _millionths(one, at / count)
                if name == "memory":
                    figures["resident_bytes"] = value
                else:
                    spent[name] += 1 if name == "epoch" else value
                    spent["step"] += value * (one["every"] is not None and name not in APART)
            yield interval(**spent), figures


def _millionths(found: re.Match[str], share: float) -> int:
    """A drawn number times a million (ms as ns, MB as bytes), at this share of the way from its first to its last."""
    first = float(found["first"] or 0)
    return int(1e6 * (first + share * (float(found.groupdict().get("last") or first) - first)))
