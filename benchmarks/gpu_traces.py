"""How diagnoses of public GPU traces compare with a reviewer's: `python -m benchmarks.gpu_traces CORPUS [--write]`.

The verdicts in gpu_verdicts.json were written from the traces alone, by other means and before the diagnosis was looked
at: causes with what a fix would save, in order, and advice that would be wrong. gpu_traces.json has what came out.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

import diagnose
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding

HERE = Path(__file__).parent
WORTH_SHARE = 0.02  # Of the step: what a reviewer names, and from which on a finding has to be right.

ABOUT_THE_RECORDING = frozenset({"profiler_overhead", "one_time_startup", "incomplete_recording"})
"""Causes that no fix of the training removes: of these a report tells in its notes."""

ANSWERS = {
    "no_mixed_precision": ("precision",),
    "tf32_off": ("tf32_off", "precision"),
    "dataloader_starvation": ("data_loading",),
    "dataloader_recreated": ("data_loading",),
    "host_work": ("python_overhead", "launch_bound"),
    "python_overhead": ("python_overhead", "launch_bound"),
    "launch_bound": ("launch_bound", "python_overhead"),
    "underfilled_gpu": ("small_batch",),
    "unused_memory": ("small_batch",),
    "scalar_syncs": ("scalar_sync", "copies_not_overlapped"),
    "data_dependent_shapes": ("scalar_sync",),
    "explicit_synchronisation": ("explicit_sync",),
    "pageable_copies": ("pageable_copies",),
    "copies_not_overlapped": ("copies_not_overlapped",),
    "offload_traffic": ("offload_traffic",),
    "tiny_copies": ("tiny_copies",),
    "unfused_pointwise": ("unfused_pointwise",),
    "copy_and_cast_churn": ("layout_conversions", "unfused_pointwise"),
    "layout_conversions": ("layout_conversions",),
    "unfused_attention": ("unfused_attention", "slow_attention_backend"),
    "slow_matmul": ("gemm_tuning", "conv_algorithm"),
    "cudnn_benchmark": ("conv_algorithm",),
    "misaligned_dimensions": ("misaligned_dimensions",),
    "allocator_churn": ("allocator", "memory_pressure"),
    "unfused_optimizer": ("optimizer_per_parameter",),
    "zero_grad_memset": ("zero_grad_fill", "optimizer_per_parameter"),
    "exposed_communication": ("exposed_communication",),
    "small_buckets": ("small_collectives", "exposed_communication"),
    "small_collectives": ("small_collectives",),
    "slow_links": ("slow_link",),
    "straggler": ("straggler",),
    "work_imbalance": ("straggler",),
    "recompilation": ("recompilation",),
}
"""The causes that each rule's finding names; of other rules there is no verdict."""


class Cause(msgspec.Struct, frozen=True):
    """What a reviewer would name, at least WORTH_SHARE of the step at best."""

    cause: str
    share: tuple[float, float]  # Of the step, what a realistic fix saves: cautious, and all of it.


class Wrong(msgspec.Struct, frozen=True):
    """Advice that would be wrong."""

    cause: str


class Verdict(msgspec.Struct, frozen=True):
    """A reviewer's view of a trace."""

    trace: str
    causes: tuple[Cause, ...]  # In order.
    must_not: tuple[Wrong, ...]


class Judged(msgspec.Struct, frozen=True):
    """What the diagnosis of a trace says, against the verdict."""

    trace: str
    named: tuple[str, ...]  # Causes in order, without those about the recording.
    said: tuple[tuple[str, float], ...]
    """Rules in order, with the share of the step that each promises, of at least WORTH_SHARE."""
    place: int | None
    """Of the first finding that names the first of them, or one that the reviewer cannot tell from it in size."""
    wrong: tuple[str, ...]  # Rules that say what must not be said.
    unshared: tuple[str, ...]  # Rules that say what the reviewer does not name.


def verdicts() -> tuple[Verdict, ...]:
    """All of them."""
    return msgspec.json.decode((HERE / "gpu_verdicts.json").read_bytes(), type=tuple[Verdict, ...])


def published() -> tuple[Judged, ...]:
    """What was found last."""
    return msgspec.json.decode((HERE / "gpu_traces.json").read_bytes(), type=tuple[Judged, ...])


def answers(finding: RankedFinding) -> set[str]:
    """The causes that a finding names."""
    return {cause for rule in finding.rules for cause in ANSWERS.get(rule, ())}


def judged(verdict: Verdict, diagnosis: Diagnosis, answers: Callable[[RankedFinding], set[str]] = answers) -> Judged:
    """A diagnosis against a verdict. `answers`: the causes that a finding names."""
    causes = [cause for cause in verdict.causes if cause.cause not in ABOUT_THE_RECORDING]
    first = {cause.cause for cause in causes if cause.share[1] >= causes[0].share[0]} if causes else set()
    said = [finding for finding in diagnosis.findings if finding.share_of_step >= WORTH_SHARE]
    answered = [answers(one) for one in said]
    must_not, listed = {one.cause for one in verdict.must_not}, {cause.cause for cause in causes}
    return Judged(
        trace=verdict.trace,
        named=tuple(cause.cause for cause in causes),
        said=tuple((one.rule, round(one.share_of_step, 3)) for one in said),
        place=next((place for place, some in enumerate(answered, start=1) if some & first), None),
        wrong=tuple(_rules(said, [bool(some) and some <= must_not for some in answered])),
        unshared=tuple(_rules(said, [bool(some) and not some & (listed | must_not) for some in answered])),
    )


def _rules(said: list[RankedFinding], chosen: list[bool]) -> Iterator[str]:
    return (one.rule for one, is_chosen in zip(said, chosen, strict=True) if is_chosen)


def table(found: tuple[Judged, ...] | None = None) -> str:
    """In numbers, then trace by trace, as Markdown."""
    rows = published() if found is None else found
    lines = [
        "| of public GPU traces | |",
        "| --- | --: |",
        *counts(rows, "traces"),
        "",
        "| trace | the reviewer's causes, in order | findings of 2 % or more | place | wrong |",
        "| --- | --- | --- | --: | --- |",
    ]
    for row in rows:
        name = row.trace.removeprefix("kineto/").split(".")[0]
        lines.append(f"| {name} | {said(row)} |")
    return "\n".join(lines).replace("_", "\\_")


def counts(rows: Sequence[Judged], what: str) -> list[str]:
    """In how many of these traces, or `what` they are called, findings are right: lines of a table."""
    sick, healthy = [row for row in rows if row.named], [row for row in rows if not row.named]
    wrong, unshared = sum(bool(row.wrong) for row in rows), sum(bool(row.unshared) for row in rows)
    return [
        f"| the reviewer's first cause is the first finding | {_count(sick, 1)} of {len(sick)} |",
        f"| it is among the first three | {_count(sick, 3)} of {len(sick)} |",
        f"| {what} with a finding of 2 % or more that is wrong | {wrong} of {len(rows)} |",
        f"| with one that the reviewer does not name | {unshared} of {len(rows)} |",
        f"| nothing to name, and nothing of 2 % is | {sum(not one.said for one in healthy)} of {len(healthy)} |",
    ]


def said(one: Judged) -> str:
    """The reviewer's causes, findings, the place, and what is wrong: cells of a row."""
    findings = ", ".join(f"{rule} {share:.0%}" for rule, share in one.said)
    place = one.place or ("-" if one.named else "")
    return f"{', '.join(one.named)} | {findings} | {place} | {', '.join(one.wrong)}"


def _count(rows: list[Judged], most: int) -> int:
    return sum(row.place is not None and row.place <= most for row in rows)


Row = TypeVar("Row")


def run(name: str, judge_all: Callable[[Path], tuple[Row, ...]], shown: Callable[[tuple[Row, ...]], str]) -> None:
    """Judge all traces of a corpus, print the table, and keep the rows in the file of that name if asked."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    found = judge_all(given.corpus)
    print(shown(found))
    if given.write:
        (HERE / name).write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1) + b"\n")


def main() -> None:
    """Judge all traces, print the table, and keep it if asked."""
    run(
        "gpu_traces.json",
        lambda corpus: tuple(judged(verdict, diagnose.analyze(corpus / verdict.trace)) for verdict in verdicts()),
        table,
    )


if __name__ == "__main__":
    main()
