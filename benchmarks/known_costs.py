"""What ops are said to take against what they took: `python -m benchmarks.known_costs [--corpus DIR] [--write]`.

What is known of a device is fitted to benchmarks/rates, and to the recordings of a corpus where one is given; some is
published elsewhere. The result is diagnose/costs/known.json, which the package takes along. known_costs.json has how
well it holds for ops that it was not fitted to.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.accuracy_tables import table as markdown
from benchmarks.fitting import FEWEST, RATES_SOURCE, as_elsewhere, by_kind, held_out, of_rates, of_recordings, said_ns
from benchmarks.recorded_ops import SHORTEST_NS, Recorded, ops_of, recordings
from diagnose.costs.book import CAUSAL, FIXED_NS
from diagnose.costs.known import KNOWN, MEASURED_ON, Family, Grade, Known, known, table
from diagnose.costs.measured import seen_in
from diagnose.costs.ops import costed_ops
from diagnose.facts.core.base import Facts

RESULTS = Path(__file__).with_name("known_costs.json")
BY_H100, BY_OTHERS = "rates of an H100", "other recordings of the device"  # What an op's time is said by.
FLASH = "arXiv 2307.08691"
PUBLISHED = tuple(
    Known("A100", Family.ATTENTION, dtype, grade, share, 10_000, least, most, 0, FLASH)
    for dtype in ("bf16", "fp16")
    for grade, share, least, most in ((Grade.FORWARD, 0.6, 0.82, 1.2), (Grade.BACKWARD, 0.5, 0.8, 1.25))
)
"""What others have measured: FlashAttention 2 reaches 0.50 to 0.73 of an A100's peak forward, and 10 to 20 points less
backward. The fixed time is that of an H100."""
UNSEEN_NS = 100  # What the bytes of an op take at most whose time does not depend on them.


class Error(msgspec.Struct, frozen=True):
    """How well a kind of prediction holds for distinct ops of a family on a device."""

    device: str
    family: Family
    by: str
    recordings: int
    ops: int
    error: float  # Median |relative error|.
    within: float  # Share of the ops whose time is in the range.
    seen_error: float | None
    """The same where the other ops of the recording correct what is said; None if they are not asked."""
    seen_within: float | None


class Streamed(msgspec.Struct, frozen=True):
    """What memory-bound ops reach on a device."""

    device: str
    ops: int  # Of `SHORTEST_NS` or more.
    share: tuple[float, float, float] | None
    """Of the memory's peak that these reach, without the fixed time: at 10 %, half and 90 % of them; None: too few."""
    short: int  # Ops whose bytes take less than `UNSEEN_NS`.
    short_ns: tuple[float, float, float] | None  # What these take.


class Published(msgspec.Struct, frozen=True):
    """All that was found out."""

    errors: tuple[Error, ...]
    streamed: tuple[Streamed, ...]


@dataclass(frozen=True)
class Said:
    """What is said of an op, and whether it holds."""

    op: Recorded
    by: str
    error: float
    within: bool
    seen: tuple[float, bool] | None


def published() -> Published:
    """What stands in benchmarks/known_costs.json."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=Published)


def read(corpus: Path) -> list[tuple[Recorded, Known | None]]:
    """Distinct ops of all recordings, with what the other ops of the recording tell of the kind, where they do."""
    return [(op, _by_the_others(op, facts)) for source, facts in recordings(corpus) for op in ops_of(source, facts)]


def _by_the_others(op: Recorded, facts: Facts) -> Known | None:
    if op.kind[0] is not Family.PRODUCT:
        return None
    products = costed_ops(facts).products
    others = products.table.in_steps & ~np.isin(np.arange(len(products.flops)), op.rows)
    return seen_in(products, op.device, others).known(op.device, *op.kind)


def judged(ops: Sequence[tuple[Recorded, Known | None]]) -> Published:
    """How well what is known holds for ops of recordings that it was not fitted to."""
    seen, groups = {id(op): by for op, by in ops}, defaultdict[tuple[str, Family, str], list[Said]](list)
    for mine in by_kind([op for op, _ in ops]):
        for one in _said(mine, seen):
            groups[one.op.device.name, one.op.kind[0], one.by].append(one)
    memory = [mine for mine in by_kind([op for op, _ in ops]) if mine[0].kind[0] is Family.MEMORY]
    return Published(
        errors=tuple(row for row in (_summed(groups[key]) for key in sorted(groups)) if row.ops >= FEWEST),
        streamed=tuple(streamed(mine) for mine in memory),
    )


def _said(ops: Sequence[Recorded], seen: Mapping[int, Known | None]) -> Iterator[Said]:
    """What is said of ops of a kind on a device: by an H100's rates, and where it has own ones by its recordings."""
    device, kind = ops[0].device, ops[0].kind
    own = device.name != MEASURED_ON and (device.name, *kind) in table()
    general, others = as_elsewhere(device, kind), held_out(ops) if own else {}
    for op in ops:
        if op.timed.took_ns >= SHORTEST_NS and general is not None:
            by = seen[id(op)]
            yield Said(op, BY_H100, *_held(op, general), _held(op, by) if by else None)
            if op.source in others:
                yield Said(op, BY_OTHERS, *_held(op, others[op.source]), None)


def _held(op: Recorded, by: Known) -> tuple[float, bool]:
    """Relative error of what is said, and whether the truth is in the range. Attention may be causal, or not."""
    seen = (1.0, (1.0 + CAUSAL) / 2, CAUSAL) if op.kind[0] is Family.ATTENTION else (1.0, 1.0, 1.0)
    most, likely, least = (
        float(said_ns(by, op.device, [replace(op.timed, flops=op.timed.flops * share)])[0]) * by.at(level)
        for level, share in enumerate(seen)
    )
    return abs(likely / op.timed.took_ns - 1.0), least <= op.timed.took_ns <= most


def _summed(some: Sequence[Said]) -> Error:
    """Of distinct ops; what several recordings have counts by its median."""
    first, seen = some[0], [(one.op, *one.seen) for one in some if one.seen is not None]
    error, within = _medians([(one.op, one.error, one.within) for one in some])
    seen_error, seen_within = _medians(seen) if seen else (None, None)
    distinct, sources = {one.op.op for one in some}, {one.op.source for one in some}
    return Error(
        first.op.device.name,
        first.op.kind[0],
        first.by,
        len(sources),
        len(distinct),
        error,
        within,
        seen_error,
        seen_within,
    )


def _medians(some: Sequence[tuple[Recorded, float, bool]]) -> tuple[float, float]:
    errors, held = defaultdict[tuple[object, ...], list[float]](list), defaultdict[tuple[object, ...], list[bool]](list)
    for op, error, within in some:
        errors[op.op].append(error)
        held[op.op].append(within)
    shares = [float(np.mean(one)) for one in held.values()]
    return round(float(np.median([np.median(one) for one in errors.values()])), 3), round(float(np.mean(shares)), 3)


def streamed(ops: Sequence[Recorded]) -> Streamed:
    """What memory-bound ops of a device reach."""
    device, kind = ops[0].device, ops[0].kind
    one = known(device, *kind)
    fixed_ns = one.fixed_ns if one else FIXED_NS
    long = [op.timed for op in ops if op.timed.took_ns >= SHORTEST_NS]
    short = [op.timed.took_ns for op in ops if op.timed.bytes / device.memory_gbps < UNSEEN_NS]
    reached = [op.bytes / (op.took_ns - fixed_ns) / device.memory_gbps for op in long]
    return Streamed(device.name, len(long), _spread(reached, 2), len(short), _spread(short, -2))


def _spread(values: Sequence[float], digits: int) -> tuple[float, float, float] | None:
    if len(values) < FEWEST:
        return None
    low, half, high = np.quantile(values, [0.1, 0.5, 0.9]).tolist()
    return round(low, digits), round(half, digits), round(high, digits)


def rates() -> str:
    """What is known of devices, row by row."""
    head = [
        *("device", "kind of op", "type", "sizes or pass", "source", "share of the peak", "fixed time, us", "range"),
        "ops",
    ]
    lines = []
    for one in table().values():
        source = one.source.replace("kineto/", "").replace(".json.gz", "")
        kind = [one.device, one.family.value, one.dtype or "-", one.grade.value or "-", source]
        figures = [f"{one.share:.2f}", f"{one.fixed_ns / 1e3:g}", f"{one.least:.2f} to {one.most:.2f}", str(one.rows)]
        lines.append([*kind, *figures])
    return markdown(head, lines, texts=5)


def errors(found: Published) -> str:
    """By device and family: how well what is said holds."""
    head = ["device", "kind of op", "said by", "recordings", "ops", "median error", "in the range"]
    head += ["corrected by the recording", "in the range"]
    lines = []
    for one in found.errors:
        counts = [str(one.recordings), str(one.ops)]
        held = [_percent(one.error), _percent(one.within), _percent(one.seen_error), _percent(one.seen_within)]
        lines.append([one.device, one.family.value, one.by, *counts, *held])
    return markdown(head, lines, texts=3)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def memory_bound(found: Published) -> str:
    """By device: what memory-bound ops reach."""
    head = ["device", "ops of 10 us or more", "share of the bandwidth", "short ops", "take, us"]
    lines = []
    for one in found.streamed:
        share = "-" if one.share is None else "{1:.2f} ({0:.2f} to {2:.2f})".format(*one.share)
        short = (
            "-" if one.short_ns is None else "{1:.1f} ({0:.1f} to {2:.1f})".format(*(ns / 1e3 for ns in one.short_ns))
        )
        lines.append([one.device, str(one.ops), share, str(one.short), short])
    return markdown(head, lines)


def known_of(ops: Sequence[Recorded] | None) -> list[Known]:
    """All that is known: by benchmarks/rates, and by recordings; without these what they told last."""
    others = (RATES_SOURCE, *{one.source for one in PUBLISHED})
    told = [one for one in table().values() if one.source not in others] if ops is None else of_recordings(ops)
    return sorted([*of_rates(), *PUBLISHED, *told], key=lambda one: (one.device, one.family, one.dtype, one.grade))


def encoded(rows: Sequence[Known]) -> bytes:
    """Rows as known.json has them."""
    return b"[\n" + b",\n".join(msgspec.json.encode(one) for one in rows) + b"\n]\n"


def main() -> None:
    """Print what fits and how well it holds, or write it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--corpus", type=Path, help="folder of public traces")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    ops = None if given.corpus is None else read(given.corpus)
    found = encoded(known_of(None if ops is None else [op for op, _ in ops]))
    if given.write:
        KNOWN.write_bytes(found)
        table.cache_clear()
    else:
        print(found.decode(), end="")
    if ops is not None:
        judgement = judged(ops)
        print(f"{errors(judgement)}\n\n{memory_bound(judgement)}")
        if given.write:
            RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(judgement), indent=1) + b"\n")


if __name__ == "__main__":
    main()
