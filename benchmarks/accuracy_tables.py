"""Tables that say how often the diagnosis is right, each from the rows of benchmarks/*.json (see benchmarks.texts)."""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import pandas as pd

from benchmarks.verdicts import PARTS, WITHOUT, Accuracy, Again, Figure, Other, Row

LARGE = 0.05  # A finding on a healthy run that promises this share of the step or more is a false positive.

ROUNDS = (
    "heads_one_by_one",
    "lengths_sorted_for_every_batch",
    "fakes_not_detached",
    "table_read_column_by_column",
    "words_guessed_at_every_position",
    "matched_boxes_compared_with_all_others",
    "table_that_learns",
)
"""The first fault of each round of new cases, in the order in which benchmarks/first_look.json has them."""

Place = Callable[[Row], "int | None"]


def summary(first: Sequence[Row], others: Sequence[Other], own: Sequence[Row], on_gpu: Sequence[str]) -> str:
    """Four rows: cases at first sight, trainings by others, our own once the rules know them, and those on a GPU."""
    lines = [
        ["faults new to the rules", *_in_short(first)],
        ["trainings by others", *_in_short(others)],
        ["faults that rules were written for", *_in_short(own)],
        ["on a GPU (one H100)", *on_gpu],
    ]
    head = [
        "",
        "faults named first",
        "options named first",
        "in the first three",
        "healthy runs with a fault of 5 % or more",
        ERROR,
    ]
    return table(head, lines)


ERROR = "median relative error of the predicted speed-up"


def _in_short(some: Sequence[Row] | Sequence[Other]) -> list[str]:
    named = counted([(one.place, one.option) for one in some if one.measured])
    healthy = [one.promised >= LARGE for one in some if isinstance(one, Row) and not one.measured]
    wrong = f"{sum(healthy)} of {len(healthy)}" if healthy else "-"
    return [*named, wrong, _off([(one.predicted, one.measured) for one in some if one.predicted and one.measured])]


def rounds(first: Sequence[Row], again: Sequence[Again]) -> str:
    """How new faults did at first sight, and do today: a row for each fault, and one that sums up its round.

    A fault has one row.
    """
    lines, today = list[list[str]](), {one.case: one for one in again}
    cases = list(dict.fromkeys(one.case for one in first))
    starts = [*map(cases.index, ROUNDS), len(cases)]
    for number, (begin, end) in enumerate(pairwise(starts), start=1):
        some = [one for one in first if one.case in cases[begin:end]]
        healthy = [one.promised >= LARGE for one in some if not one.measured]
        mine = [one for one in some if one.measured]
        said = f"all {len(mine)} faults; {sum(healthy)} of {len(healthy)} healthy runs with a fault of 5 % or more"
        looked = [today[one.case] for one in mine]
        counts = [count for rows in (mine, looked) for count in _counted([one.place for one in rows])]
        lines.append([f"**{number}**", f"**{said}**", *(f"**{count}**" for count in counts)])
        both = zip(mine, looked, strict=True)
        lines += [
            [str(number), f"`{was.case}`", *(_yes(one, most) for one in (was, now) for most in (1, 3))]
            for was, now in both
        ]
    first_three = ["first finding", "in the first three"]
    return table(["round", "fault", *first_three, *(f"today: {name}" for name in first_three)], lines, texts=2)


def _yes(one: Row | Again, most: int) -> str:
    return "yes" if one.place is not None and one.place <= most else "no"


def counted(some: Sequence[tuple[int | None, bool]]) -> list[str]:
    """Of (place among its kind, whether it is an option): first faults, first options, both in the first three."""
    kinds = ([place for place, option in some if option is kind] for kind in (False, True))
    return [*(_counted(places)[0] if places else "-" for places in kinds), _counted([place for place, _ in some])[1]]


def _counted(places: Sequence[int | None]) -> list[str]:
    """How many of them are the first, and how many among the first three."""
    return [f"{sum(at is not None and at <= most for at in places)} of {len(places)}" for most in (1, 3)]


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table whose first columns are texts and the others numbers."""
    lines = [head, ["---"] * texts + ["--:"] * (len(head) - texts), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def of_others(others: Sequence[Other], own: Sequence[Row]) -> str:
    """How good diagnoses are of trainings by others, which nothing was built with, and of our own cases."""
    faulty = [one for one in own if one.measured is not None]

    def said(some: Sequence[Other] | Sequence[Row]) -> list[str]:
        pairs = [(one.predicted, one.measured) for one in some if one.predicted and one.measured]
        met = sum(meets(*pair) for pair in pairs)
        first = sum(one.place == 1 for one in some)
        return [f"{first} of {len(some)}", _off(pairs), f"{met} of {len(pairs)}"]

    by_factor = [(other.by_one_factor, other.measured) for other in others if other.by_one_factor and other.measured]
    names = ("the fault is named first", "error of the speed-up, median", "measured interval meets the range")
    lines = [list(line) for line in zip(names, said(others), said(faulty), strict=True)]
    lines.append(["error if one factor stands for what recording adds", _off(by_factor), "-"])
    return table(["", "trainings by others, unseen", "our own planted cases"], lines)


def _off(pairs: Sequence[tuple[Figure, Figure]]) -> str:
    return _percent(np.array([abs(said.likely / true.likely - 1.0) for said, true in pairs]), 0.5)


def naming(found: Accuracy, first: Accuracy) -> str:
    """Whether the fault is named: by us at first sight and on both parts, and by the others on all."""
    rows = found.rows
    ours: Place = lambda one: one.place  # noqa: E731
    asked = [row for row in rows if row.patterns is not None]
    columns = [
        _named(first.rows, ours),
        *(_named(some, ours) for some in _parts(rows)),
        _named(rows, ours),
        _named(rows, lambda one: one.largest_place),
        _named(asked, lambda one: one.patterns_place),
    ]
    healthy = [[one for one in some if one.measured is None] for some in (first.rows, *_parts(rows), rows)]
    blamed = [f"{sum(one.promised >= LARGE for one in some)} of {len(some)}" for some in healthy]
    matched = [one for one in asked if one.measured is None]
    blamed += ["-", f"{sum(bool(one.patterns) for one in matched)} of {len(matched)}"]
    parts = [[fixed_run for fixed_run in found.fixed_runs if fixed_run.part == part] for part in PARTS]
    fixed_runs = [first.fixed_runs, *parts, found.fixed_runs]
    still = [f"{sum(one.promised >= LARGE for one in some)} of {len(some)}" for some in fixed_runs] + ["-", "-"]
    names = ("the fault is named first", "among the first three", "mean reciprocal rank")
    lines = [[name, *(column[at] for column in columns)] for at, name in enumerate(names)]
    lines += [
        ["healthy runs with a fault of 5 % or more", *blamed],
        ["fixed runs where the fault is still named", *still],
    ]
    head = ["", "at first sight", "reported", "developed on", "both", "longest part first", "torch's pattern matcher"]
    return table(head, lines)


def specific(rows: Sequence[Row]) -> str:
    """How many of the reported faults are named by a rule that may have been written for just this one."""
    first = [row for row in rows if row.measured and row.place == 1]
    cases = {rule: {one.case for one in first if one.found[0] == rule} for rule in {one.found[0] for one in first}}
    reported = [one for one in first if one.part == PARTS[0]]
    alone = sum(len(cases[one.found[0]]) == 1 for one in reported)
    return f"Of the {len(reported)} reported faults that are named first, {alone} have a rule to themselves."


def _parts(rows: Sequence[Row]) -> list[list[Row]]:
    return [[row for row in rows if row.part == part] for part in PARTS]


def _named(rows: Sequence[Row], place: Place) -> list[str]:
    places = [place(row) for row in rows if row.measured is not None]
    first, three = (sum(at is not None and at <= most for at in places) for most in (1, 3))
    reciprocal = sum(1 / at for at in places if at) / max(len(places), 1)
    return [f"{first} of {len(places)}", f"{three} of {len(places)}", f"{reciprocal:.2f}"]


Floats = np.ndarray[tuple[int], np.dtype[np.float64]]


def errors(rows: Sequence[Row]) -> Floats:
    """Predicted over measured speed-up, less one, where the fault was named."""
    return errors_of([(row.predicted, row.measured) for row in rows])


def errors_of(pairs: Sequence[tuple[Figure | None, Figure | None]]) -> Floats:
    """The same of pairs of predicted and measured, where both are known."""
    return np.array([said.likely / true.likely - 1.0 for said, true in pairs if said and true])


def errors_left(rows: Sequence[Row]) -> Floats:
    """The same of the share of the step that is left after the fix: 3.1 if 10 x is predicted of 41 x."""
    return 1.0 / (1.0 + errors(rows)) - 1.0


def predictions(rows: Sequence[Row], first: Sequence[Row]) -> str:
    """How far predicted speed-ups are off, where the fault was named."""
    structural = [row for row in rows if row.kind in ("structural", "mixed")]
    kernel = [row for row in rows if row.kind == "kernel"]
    groups = [first, *_parts(structural), *_parts(kernel), rows]
    head = ["", "at first sight", "structural, reported", "developed on", "kernels, reported", "developed on", "all"]
    lines = {
        "predictions": [str(len(errors(some))) for some in groups],
        "error of the speed-up, median": [_percent(np.abs(errors(some)), 0.5) for some in groups],
        "90th percentile": [_percent(np.abs(errors(some)), 0.9) for some in groups],
        "mean, with its sign": [_signed(errors(some)) for some in groups],
        "error of the step that is left, median": [_percent(np.abs(errors_left(some)), 0.5) for some in groups],
        "of the step left, 90th percentile": [_percent(np.abs(errors_left(some)), 0.9) for some in groups],
        "of the step left, mean with its sign": [_signed(errors_left(some)) for some in groups],
        "measured interval meets the range": [f"{sum(map(covers, some))} of {len(errors(some))}" for some in groups],
        "rank correlation (Spearman)": [_correlation(some) for some in groups],
        "error if durations are added up, median": [_percent(np.abs(_summed(some)), 0.5) for some in groups],
        "gain lost to a wrong first finding, mean": [_lost(some) for some in groups],
        "noise from run to run, median": [_noise(some) for some in groups],
    }
    return table(head, [[name, *values] for name, values in lines.items()])


def covers(one: Row) -> bool:
    """Whether the measured interval and the predicted range have something in common."""
    return one.measured is not None and one.predicted is not None and meets(one.predicted, one.measured)


def meets(said: Figure, true: Figure) -> bool:
    """Whether a range and a measured interval have something in common."""
    return said.low <= true.high and true.low <= said.high


def _summed(rows: Sequence[Row]) -> Floats:
    return np.array([row.summed / row.measured.likely - 1.0 for row in rows if row.summed and row.measured])


def _correlation(rows: Sequence[Row]) -> str:
    pairs = [(row.predicted.likely, row.measured.likely) for row in rows if row.predicted and row.measured]
    if len(pairs) < 5:
        return "-"
    ranks = pd.DataFrame(pairs).rank()
    return f"{ranks[0].corr(ranks[1]):.2f}"


def _lost(rows: Sequence[Row]) -> str:
    lost = [row.regret for row in rows if row.regret is not None]
    return f"{np.mean(lost):.0%} of the step" if lost else "-"


def _noise(rows: Sequence[Row]) -> str:
    return _percent(np.array([row.noise for row in rows if row.noise is not None]), 0.5)


def _percent(values: Floats, share: float) -> str:
    return f"{np.quantile(values, share):.0%}" if len(values) else "-"


def _signed(values: Floats) -> str:
    return f"{values.mean():+.0%}" if len(values) else "-"


def poorer(found: Accuracy) -> str:
    """How much of this hangs on what a recording holds."""
    lines = []
    for without, words in WITHOUT.items():
        some = [one for one in found.poorer if one.without == without]
        places, healthy = [one.place for one in some if not one.healthy], [one for one in some if one.healthy]
        first, three = (sum(at is not None and at <= most for at in places) for most in (1, 3))
        blamed = sum(one.promised >= LARGE for one in healthy)
        told = [f"{number} of {len(places)}" for number in (first, three)]
        lines.append([words, *told, f"{blamed} of {len(healthy)}"])
    head = ["left out of the recording", "named first", "in three", "healthy with a fault of 5 % or more"]
    return table(head, lines) if found.poorer else ""


def families(rows: Sequence[Row]) -> str:
    """By kind of fault, both parts."""
    lines = []
    for family in sorted({row.family for row in rows if row.measured is not None}):
        some = [row for row in rows if row.family == family and row.measured is not None]
        first, three, _ = _named(some, lambda one: one.place)
        lines.append([family, first, three, _percent(np.abs(errors(some)), 0.5), _noise(some)])
    return table(["family", "named first", "in three", "median error of the speed-up", "noise"], lines)


def joints(found: Accuracy) -> str:
    """Several faults fixed together."""
    head = ["mixed case", "fixed together", "named", "measured", "replayed", "added up"]
    lines = []
    for joint in found.joints:
        values = [f"{joint.measured.likely:.2f} x", f"{joint.predicted:.2f} x", f"{joint.summed:.2f} x"]
        faults = f"{joint.named} of {len(joint.faults)}"
        lines.append([f"{joint.case}, {joint.trial}", " + ".join(joint.faults), faults, *values])
    return table(head, lines, texts=2) if lines else ""


def details(rows: Sequence[Row]) -> str:
    """Every fault: at which level, the place of the finding that names it, what was measured and predicted."""
    lines = []
    for row in rows:
        if row.measured:
            first = f"`{row.found[0]}`" if row.found else "none"
            figures = [_figure(row.measured), _figure(row.predicted)]
            lines.append([f"`{row.case}`", row.trial, str(row.place or "-"), *figures, first])
    head = ["fault", "level", "place", "measured", "predicted", "first finding says"]
    return table(head, lines, texts=2)


def controls(rows: Sequence[Row]) -> str:
    """Every healthy run: what is said of it first, and what the most promising finding would save."""
    healthy = [row for row in rows if row.measured is None]
    lines = [[f"`{one.case}`", f"`{one.found[0]}`" if one.found else "none", f"{one.promised:.0%}"] for one in healthy]
    return table(["healthy training", "first finding says", "promises of the step"], lines, texts=2)


def _figure(said: Figure | None) -> str:
    return f"{said.likely:.2f} x ({said.low:.2f} to {said.high:.2f})" if said else "-"
