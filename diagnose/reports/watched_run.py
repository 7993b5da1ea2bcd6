"""A watched run in words and tables, for the terminal and Markdown."""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from diagnose.contracts.watched_run import (
    LEFT_OUT,
    RECORDED,
    Figure,
    PhaseTime,
    RankRun,
    RunBasis,
    RunFinding,
    RunPart,
    RunPartKind,
    WatchedRun,
)
from diagnose.reports.sections import Row, Section
from diagnose.trace.units import about, duration, long_duration, number, ranks, size, three_digits, two_digits

FINDINGS, OTHERS = "What to fix in this run", "Also checked"
MOST_IN_FULL = 3  # Findings, in a report without details.
NEXT = "diagnose analyze ... --details", "all findings and tables (or --html)"

KINDS = {
    RunPartKind.TRAINING: "training steps",
    RunPartKind.LOADER: "waiting for data",
    RunPartKind.EVALUATION: "evaluation",
    RunPartKind.SAVE: "checkpoints",
    RunPartKind.COLLECTION: "Python garbage collection",
    RunPartKind.START: "start-up and compilation",
    RunPartKind.RECORDING: "recorded steps",
    RunPartKind.OUTSIDE: "between steps",
    RunPartKind.LOST: "not in the log",
}

PHASES = {
    "step": "step",
    "loader": "waiting for data",
    "forward": "forward (CPU)",
    "backward": "backward (CPU)",
    "optimizer": "optimizer (CPU)",
    "collection": "garbage collection",
    "compilation": "compilation",
    "save": "checkpoint",
    "evaluation": "evaluation",
    "evaluation_loader": "  waiting for data",
    "recording": "recorded steps",
    "outside": "between steps",
    "device": "step on the GPU",
}

ENDINGS = {
    "itself": "completed",
    "interrupted": "interrupted",
    "crashed": "ended with an error",
    None: "killed or still running",
}

FOUND_BY = {
    "optimizer": "optimizer steps",
    "backward": "backward passes",
    "loader": "requested batches",
    "call": "model calls",
}

FIGURES = {
    "resident_bytes": "resident memory",
    "children_resident_bytes": "resident memory of workers",
    "batches_ready": "batches ready in workers",
    "read_bytes": "read from storage",
    "children_read_bytes": "read from storage by workers",
    "written_bytes": "written to storage",
    "children_written_bytes": "written to storage by workers",
    "major_faults": "major page faults",
    "minor_faults": "minor page faults",
    "cpu_s": "CPU time, s",
    "allocated_bytes": "allocated GPU memory",
    "most_allocated_bytes": "peak allocated GPU memory",
    "reserved_bytes": "reserved GPU memory",
    "allocator_retries": "allocator retries",
    "sm_clock_mhz": "SM clock, MHz",
    "temperature_c": "temperature, °C",
    "power_w": "power, W",
    "slowed": "throttled by heat or power",
}

BASES = {
    RunBasis.COMPARED: "compared with other steps of this run",
    RunBasis.RULE_OF_THUMB: "assumes a typical saving for this fix",
    RunBasis.MODELLED: "modelled from the time to load a batch",
    RunBasis.REPLAYED: "simulated on recorded steps",
    RunBasis.CHOICE: "proportional to the work skipped",
    RunBasis.AT_MOST: "assumes that half of this time is avoidable",
    RunBasis.NONE: "no measurable time",
}

MOST_EPOCHS, MOST_RANKS = 8, 64  # Rows: of epochs the first ones and the last.
ALL = 0.95  # Share that is called all of it (our choice).


def headline(run: RankRun) -> str:
    """Where the time went, in one line. Shares add up to 100 %; what rounds to nothing is left out."""
    told = list[str]()
    for part, tenths in zip(run.parts, _tenths(run.parts), strict=True):
        in_first = part.ns >= 1e9 and (part.first_epoch_ns or 0) >= ALL * part.ns
        where = " (all of it in the first epoch)" if in_first else ""
        told += [f"{KINDS[part.kind]} {tenths / 10:.1f} %{where}"] if tenths else []
    return f"{long_duration(run.length_ns)}: {', '.join(told)}"


def subject(found: WatchedRun) -> str:
    """What ran, and how it ended."""
    run = found.ranks[0]
    by = FOUND_BY.get(run.steps_by or "", "")
    steps = f"{number(run.steps)} step{'' if run.steps == 1 else 's'}"
    said = f"{steps}{f' (counted by {by})' if by else ''}, {ENDINGS.get(run.ended, ENDINGS[None])}"
    if run.world_size == 1:
        return said
    return f"Rank {run.rank} of {run.world_size} ({len(found.ranks)} with a log): {said}"


def damage(run: RankRun) -> str:
    """How much of the log is damaged; empty of a whole one."""
    if not run.damaged:
        return ""
    places = "1 place" if run.damaged == 1 else f"{run.damaged} places"
    return f"The log is damaged in {places}; their contents are missing here."


class RunCard(Struct, frozen=True):
    """A finding of the run in words."""

    title: str
    saving: str  # `8.6 s (4.3 s to 9.2 s), 14 %`; empty where it costs no time.
    evidence: tuple[str, ...]
    change: str
    detail: str  # Ranks, and what the saving rests on.
    shares: tuple[float, float, float]  # Of the run, in percent: low, likely, high.


def cards(found: WatchedRun) -> list[RunCard]:
    """A card per finding, in order. Shares are of the longest rank's time, or of that since the first attempt began."""
    first = found.ranks[0]
    began_ns = min([first.started_unix_ns, *(one.started_unix_ns for one in found.attempts)])
    length_ns = first.started_unix_ns + first.length_ns - began_ns
    length_ns = max(length_ns, *(run.length_ns for run in found.ranks))
    return [_card(one, length_ns, len(found.ranks)) for one in found.findings]


def _card(one: RunFinding, length_ns: int, ranks_known: int) -> RunCard:
    """A finding in words. `length_ns`: of the run, for shares; `ranks_known`: how many ranks have a log."""
    low, likely, high = one.saving.low_ns, one.saving.likely_ns, one.saving.high_ns
    low_share, share, high_share = (min(100 * ns / max(length_ns, 1), 100.0) for ns in (low, likely, high))
    costs = one.saving.basis is not RunBasis.NONE
    span = "" if low == high else f" ({_estimate(low)} to {_estimate(high)})"
    on = f"On {ranks(one.ranks)}. " if 0 < len(one.ranks) < ranks_known else ""
    bound = one.kind == RECORDED and one.saving.basis is RunBasis.AT_MOST
    basis = "upper bound" if bound else BASES[one.saving.basis]
    return RunCard(
        one.title,
        f"{_estimate(likely)}{span}, {two_digits(share)} %" if costs else "",
        tuple(evidence.text for evidence in one.evidence),
        one.change,
        f"{on}Saving: this fix alone, {basis}." if costs else on.strip(),
        (low_share, share, high_share),
    )


def _estimate(ns: int) -> str:
    return long_duration(ns) if ns >= 60e9 else about(ns)


def others(found: WatchedRun) -> list[str]:
    """Sentences on the rules that found nothing, and on those that could not look."""
    return [f"{label} {what}." for label, what in left_out(found, [])]


def left_out(found: WatchedRun, rest: Sequence[RunCard]) -> Iterator[tuple[str, str]]:
    """(label, names) of the findings in `rest`, of rules that found nothing, and of rules that could not look."""
    if rest:
        yield f"{len(rest)} more:", "; ".join(f"{one.title}{f': {one.saving}' if one.saving else ''}" for one in rest)
    by_why = dict[str, list[str]]()
    for one in found.not_found:
        by_why.setdefault(one.why, []).append(one.rule.replace("_", " "))
    if clean := by_why.pop("", []):
        yield "Nothing significant (< 1 % or < 1 s):", ", ".join(clean)
    if excluded := by_why.pop(LEFT_OUT, []):
        yield f"{LEFT_OUT.capitalize()}:", ", ".join(excluded)
    if by_why:
        yield "Not checked:", "; ".join(f"{', '.join(some)} ({why})" for why, some in by_why.items())


def sections(found: WatchedRun) -> Iterator[Section]:
    """The tables, the most important first."""
    run = found.ranks[0]
    yield Section("Where the run's time went", ("", "time", "share", "count"), tuple(_parts(run)))
    if found.attempts:
        heads = ("", "length", "start-up", "steps", "steps saved")
        yield Section("Earlier attempts", heads, tuple(_attempts(found)))
    if run.phases:
        columns = ("", "total", "steps", "mean", "median", "p99", "max")
        note = "Without the first step. CPU times do not include GPU work that runs asynchronously."
        yield Section("Steps", columns, tuple(map(_phase, run.phases)), note)
    if len(found.ranks) > 1:
        yield _ranks(found)
    if len(run.epochs) > 1:
        kept = run.epochs if len(run.epochs) <= MOST_EPOCHS else (*run.epochs[: MOST_EPOCHS - 1], run.epochs[-1])
        times = [(number(one.steps), duration(one.step_ns), duration(one.loader_ns)) for one in kept]
        rows = [Row(f"from step {number(one.first_step)}", cells) for one, cells in zip(kept, times, strict=True)]
        more = len(run.epochs) + run.epochs_left_out - len(kept)
        note = f"{number(more)} more epochs are not shown." if more else ""
        yield Section("Epochs", ("", "steps", "mean step", "waiting for data"), tuple(rows), note)
    if run.figures:
        figures = [_figure(one) for one in sorted(run.figures, key=lambda one: [*FIGURES, one.name].index(one.name))]
        yield Section("Process and GPU", ("", "first", "mean", "max", "last"), tuple(figures))


def _parts(run: RankRun) -> Iterator[Row]:
    for part, tenths in zip(run.parts, _tenths(run.parts), strict=True):
        count = "" if part.count is None else number(part.count)
        cells = long_duration(part.ns), f"{tenths / 10:.1f} %", count
        yield Row(KINDS[part.kind], cells, part.ns / max(run.length_ns, 1))


def _attempts(found: WatchedRun) -> Iterator[Row]:
    for at, one in enumerate(found.attempts, start=1):
        ended = "killed" if one.ended is None else ENDINGS.get(one.ended, ENDINGS[None])
        times = long_duration(one.length_ns), long_duration(one.start_ns)
        yield Row(f"{at}: {ended}", (*times, number(one.steps), number(one.saved_steps)))


def _tenths(parts: Sequence[RunPart]) -> list[int]:
    """Shares in tenths of a percent, rounded so that they add up to 1000 (by the largest remainders)."""
    whole = sum(part.ns for part in parts)
    exact = [1000 * part.ns / max(whole, 1) for part in parts]
    found = [int(one) for one in exact]
    order = sorted(range(len(parts)), key=lambda at: found[at] - exact[at])
    for at in order[: 1000 - sum(found)] if whole else []:
        found[at] += 1
    return found


def _phase(one: PhaseTime) -> Row:
    mean = one.ns / max(one.count, 1)
    cells = (one.ns, mean, one.median_ns, one.p99_ns, one.most_ns)
    total, *others = ("" if value is None else duration(value) for value in cells)
    return Row(PHASES[one.phase], (total, number(one.count), *others))


def _figure(one: Figure) -> Row:
    told = size if one.name.endswith("_bytes") else three_digits
    return Row(FIGURES.get(one.name, one.name), tuple(map(told, (one.first, one.mean, one.most, one.last))))


_BESIDE = {"step": "step", "loader": "data", "forward": "forward", "backward": "backward", "optimizer": "optimizer"}
"""Phases of the table of ranks, in short."""


def _ranks(found: WatchedRun) -> Section:
    """A row per rank: its steps and time, and the mean time per step of each phase that any rank has."""
    shown = found.ranks[:MOST_RANKS]
    phases = [{one.phase: one for one in run.phases} for run in shown]
    columns = [name for name in _BESIDE if any(name in some for some in phases)]
    rows = []
    for run, some in zip(shown, phases, strict=True):
        steps = max(run.steps - 1, 1)
        means = [duration(some[name].ns / steps) if name in some else "-" for name in columns]
        rows.append(Row(f"rank {run.rank}", (number(run.steps), long_duration(run.length_ns), *means)))
    heads = ("", "steps", "time", *(_BESIDE[name] for name in columns))
    more = len(found.ranks) - len(shown)
    note = f"{number(more)} more ranks are not shown. " if more else ""
    note += "Means per step. Backward passes include waiting for other ranks."
    return Section("Ranks", heads, tuple(rows), note)
