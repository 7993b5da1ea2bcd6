"""What `diagnose profile` would have noted of a synthetic training, beside its trace: see `drawing` for the lines."""

import re
from decimal import Decimal

import numpy as np

from diagnose.trace import manifest
from diagnose.trace.model import Context, ValueGraph

MADE_LATE_NS = 500_000  # What handing over a batch takes that is made after it was asked for.

TIME = r"\d+(?:\.\d{1,6})?"


def _line(pattern: str) -> re.Pattern[str]:
    return re.compile(rf"^ *{pattern}(?: +#.*| *)$", re.MULTILINE)


_WORLD = _line(r"rank \d+ of (?P<ranks>\d+)")
_THREADS = _line(r"(?P<threads>[1-9]\d*) threads?, (?P<cores>[1-9]\d*) cores?(?:, flags (?P<flags>[\w ]+?))?")
_RIVAL = _line(r"rival (?P<name>\w+) (?P<share>[01](?:\.\d+)?)")
_TIMED = _line(rf"timed(?P<times>(?: {TIME})+)")
_BATCHES = _line(r"batches (?P<rows>\d+)x(?P<length>\d+), (?P<needed>\d+) needed, (?P<filled>\d+) filled")
_FETCHED = _line(r"fetched (?P<megabytes>\d+) MB a step")
_MADE = _line(
    rf"batches made in (?P<made>{TIME}) of (?P<waited>{TIME})"
    rf"(?:, computing (?P<computing>{TIME}))?(?:, sampler (?P<sampling>{TIME}))?"
    rf"(?:, handed over in (?P<handed>{TIME}), (?P<tensors>\d+) tensors(?: of (?P<bytes>\d+) MB)?)?"
    rf"(?:, by (?P<workers>\d+) workers)?(?P<late>, late)?(?:, (?P<calls>[\w.]+) (?P<percent>\d+)%)?"
)
_EPOCHS = _line(
    rf"epochs of (?P<steps>\d+) steps of (?P<mean>{TIME}), (?P<between>{TIME}) between, (?P<starting>{TIME}) starting"
)
_VALUES = _line(r"values (?P<ops>[^#\n]*[^#\n ])")
_BENCHMARK = _line(r"cudnn\.benchmark (?P<value>on|off)")
_NOTED = (_BENCHMARK, _THREADS, _RIVAL, _TIMED, _BATCHES, _FETCHED, _MADE, _EPOCHS, _VALUES)
_VALUE = re.compile(
    r"(?P<name>[\w:]+)(?: as (?P<same>\d+))?(?: takes (?P<takes>(?:-|\d+)(?:,(?:-|\d+))*))?"
    r"(?P<always> always)?(?P<back> back)?"
    r"(?P<counts>(?: (?:sparse|looked|carried) \d{1,4})*)"
)


def is_noted(text: str) -> bool:
    """Whether a line of a drawing, or any line of it, is about what a trace does not hold, and a manifest does."""
    return any(one.search(text) for one in _NOTED)


def context(text: str, rank: int, ranks: int, period_ns: int) -> Context:
    """What is noted of this rank of a drawing; `period_ns`: its step time, if no line says `timed`."""
    said, timed, searches = _THREADS.search(text), _TIMED.search(text), _BENCHMARK.search(text)
    threads, cores = (int(said["threads"]), int(said["cores"])) if said else (None, None)
    times = tuple(map(ns, timed["times"].split())) if timed else (period_ns,)
    fetched = int(found["megabytes"]) * 1_000_000 if (found := _FETCHED.search(text)) else None
    known = manifest.RankManifest(
        rank=rank,
        world_size=int(world["ranks"]) if (world := _WORLD.search(text)) else ranks,
        flags=manifest.Flags(threads=threads, cudnn_benchmark=None if searches is None else searches["value"] == "on"),
        unprofiled=manifest.Timed(first_step=0, wall_ns=times, fetched_bytes=fetched) if said or timed else None,
        python_threads=tuple(manifest.PythonThread(name=one, cpu_share=float(at)) for one, at in _RIVAL.findall(text)),
        loaders=_loaders(text),
        epochs=_epochs(text),
    )
    flags = tuple(said["flags"].split()) if said and said["flags"] else None
    return Context(known, manifest.Host(cpus=cores, cpus_allowed=cores, cpu_flags=flags), ranks)


def values(text: str) -> ValueGraph | None:
    """The graph of the ops that the line `values` names, repeated in two steps; None without it. Raises ValueError."""
    if (line := _VALUES.search(text)) is None:
        return None
    ops = [part.strip() for part in line["ops"].split("|")]
    said = [found for op in ops if (found := _VALUE.fullmatch(op))]
    if len(said) < len(ops):
        raise ValueError("an op is NAME, then any of `as N`, `takes N,M`, `always`, `back`, counts, in order")
    names, count = sorted({one["name"] for one in said}), len(said)
    first: list[int] = []
    for at, one in enumerate(said):
        first.append(at if one["same"] is None else first[int(one["same"])])
    made = [step * count + at if not said[at]["always"] else at for step in (0, 1) for at in first]
    takes = [(one["takes"] or "").replace("-", "-1").split(",") for one in said]
    edges = [(at, int(taken)) for at, some in enumerate(takes) for taken in some if taken]
    words = [one["counts"].split() for one in said]
    counts = [dict(zip(some[::2], map(int, some[1::2]), strict=True)) for some in words]
    looked = [one.get("looked", -1) for one in counts]
    before = [(count + at, one["carried"]) for at, one in enumerate(counts) if "carried" in one]
    both = [
        (step * count + at, one if one < 0 else step * count + one) for step in (0, 1) for at, one in edges
    ] + before
    return ValueGraph(
        names=tuple(names),
        name=np.array([names.index(one["name"]) for one in said] * 2),
        thread=np.zeros(2 * count, dtype=np.int64),
        step=np.repeat([0, 1], count),
        backward=np.array([int(bool(one["back"])) for one in said] * 2),
        makes=np.ones(2 * count, dtype=np.int64),
        same=np.array([-1 if value == at else value for at, value in enumerate(made)]),
        uses=np.array([taker for taker, _ in both], dtype=np.int64),
        sparse=np.array([one.get("sparse", 0) for one in counts] * 2),
        looked_up=np.array([*looked, *(one + count if one >= 0 else -1 for one in looked)]),
        used=np.array([made for _, made in both], dtype=np.int64),
    )


def _epochs(text: str) -> manifest.Epochs | None:
    """The line `epochs of ...` as what the manifest holds; None without it."""
    if (said := _EPOCHS.search(text)) is None:
        return None
    steps, mean_ns = int(said["steps"]), ns(said["mean"])
    between_ns, starting_ns = ns(said["between"]), ns(said["starting"])
    return manifest.Epochs(
        began=(-(steps // 2),),
        steps=steps,
        timed=steps,
        step_ns=mean_ns,
        first_step_ns=mean_ns + round((between_ns + starting_ns) * (1 - 1 / steps)),
        between_ns=between_ns,
        starting_ns=starting_ns,
    )


def _loaders(text: str) -> tuple[manifest.Loader, ...]:
    """One loader, if a line says what batches hold or how they are made."""
    made = _MADE.search(text)
    if not _BATCHES.search(text) and not made:
        return ()
    sequences = None
    if said := _BATCHES.search(text):
        rows, length, needed, filled = map(int, said.groups())
        places = {"places": rows * length, "to_longest": rows * needed, "used": rows * filled}
        sequences = manifest.RowsFilled(batches=1, rows=rows, shortest=length, longest=length, **places)
    fetch_ns, wait_ns, cpu_ns, handed_ns, sampling_ns = (
        ns(made[name]) if made and made[name] else None
        for name in ("made", "waited", "computing", "handed", "sampling")
    )
    workers, tensors, size, late, calls = (
        (made["workers"], made["tensors"], made["bytes"], made["late"], made["calls"]) if made else [""] * 5
    )
    share = int(made["percent"]) / 100 if made and calls else 0.0
    return (
        manifest.Loader(
            dataset="Synthetic",
            num_workers=int(workers or 0),
            asked=1,
            looks=1,
            sequences=sequences,
            fetch_ns=fetch_ns,
            fetch_cpu_ns=cpu_ns,
            wait_ns=wait_ns,
            sampling_ns=sampling_ns,
            handed_ns=handed_ns or (MADE_LATE_NS if late else None),
            handing_share=1.0 if handed_ns else 0.0 if late else None,
            tensors=int(tensors) if tensors else None,
            objects=int(tensors) if tensors else None,
            batch_bytes=int(size) * 10**6 if size else None,
            lines=(manifest.SampledLine(file="train.py", line=3, function="__getitem__", calls=calls, share=share),)
            if calls
            else (),
        ),
    )


def ns(text: str) -> int:
    """Milliseconds as ns."""
    if not re.fullmatch(TIME, text):
        raise ValueError(f"{text} is no time in ms, with at most six decimals")
    return int(Decimal(text) * 1_000_000)
