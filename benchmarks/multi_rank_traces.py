"""How diagnoses of real recordings of many ranks compare with a reviewer's.

`python -m benchmarks.multi_rank_traces CORPUS [--write]`. The verdicts in multi_rank_verdicts.json were written from
the traces, and from the scripts that made them, before the diagnosis was looked at: which rank, stage or collective to
look at first, causes with what a fix would save, and advice that would be wrong. multi_rank_traces.json has what came
out.
"""

from collections.abc import Sequence
from pathlib import Path

import msgspec

import diagnose
from benchmarks import gpu_traces
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import RankedFinding
from diagnose.reports import job_tables as jobs

HERE = Path(__file__).parent

BY_TITLE = (
    ("straggler", "fetches batches", ("loader_skew", "data_loading")),
    ("straggler", "", ("straggler",)),
    ("work_imbalance", "", ("varying_straggler",)),
    ("expert_imbalance", "", ("expert_imbalance",)),
    ("pipeline_bubble", "computes longer", ("uneven_stages",)),
    ("pipeline_bubble", "", ("pipeline_bubble",)),
    ("fsdp_units", "again", ("regathered_parameters",)),
    ("fsdp_units", "micro-batch", ("missing_no_sync",)),
    ("fsdp_units", "", ("exposed_communication",)),
    ("missing_no_sync", "", ("missing_no_sync",)),
    ("small_buckets", "", ("small_buckets", "exposed_communication")),
    ("barriers", "", ("barriers",)),
    ("activation_checkpointing", "", ("recompute",)),
    ("unused_gradients", "", ("unused_gradients",)),
)
"""Rule, a part of the finding's title, and causes that it names; the first that fits. Of others, gpu_traces.ANSWERS."""


class Verdict(gpu_traces.Verdict, frozen=True):
    """A reviewer's view of a job. The file also has the program, evidence, and why advice would be wrong."""

    job: str  # DDP, TP, PP and so on.
    ranks: int
    look_at: tuple[int, ...]
    """Ranks that the first screen is to name, one of them; none of a job in which no rank stands out."""
    stages: tuple[int, ...]  # Stages of a pipeline that it is to name.
    held_in: tuple[str, ...]  # Collectives that it is to name, one of them: what holds ranks up longest by itself.
    tolerated: tuple[int, ...]  # Ranks that it may name besides: chance made them late in this recording.


class Judged(msgspec.Struct, frozen=True):
    """What the diagnosis of a job says, against the verdict."""

    trace: str
    job: str
    look_at: tuple[int, ...]
    told: tuple[str, ...]  # The first screen in sentences; none where nothing is said of a job.
    rank: int | None  # That the first screen says to be the cause.
    right_rank: bool | None
    """Whether it is one to look at, with its stage, or none is where none is to be. None of one rank, and of no job."""
    right_collective: bool | None  # Whether a collective is named that holds ranks up. None where none does.
    findings: gpu_traces.Judged


def verdicts() -> tuple[Verdict, ...]:
    """All of them."""
    return msgspec.json.decode((HERE / "multi_rank_verdicts.json").read_bytes(), type=tuple[Verdict, ...])


def published() -> tuple[Judged, ...]:
    """What was found last."""
    return msgspec.json.decode((HERE / "multi_rank_traces.json").read_bytes(), type=tuple[Judged, ...])


def judged(verdict: Verdict, diagnosis: Diagnosis) -> Judged:
    """A diagnosis against a verdict."""
    job = diagnosis.job
    found = None if job is None else jobs.culprit(job)
    told = () if job is None else tuple(jobs.lead(job))
    rank = None if found is None else found.rank.rank
    staged = (
        job is None or found is None or not verdict.stages or _has_stage(jobs.rank_told(job, found.rank.rank), verdict)
    )
    right = rank in verdict.look_at and staged if verdict.look_at else rank is None or rank in verdict.tolerated
    return Judged(
        trace=verdict.trace,
        job=verdict.job,
        look_at=verdict.look_at,
        told=told,
        rank=rank,
        right_rank=right if told or verdict.look_at else None,
        right_collective=any(one in text for one in verdict.held_in for text in told) if verdict.held_in else None,
        findings=gpu_traces.judged(verdict, diagnosis, answers),
    )


def _has_stage(told: str, verdict: Verdict) -> bool:
    return any(f"stage {stage}" in told for stage in verdict.stages)


def answers(finding: RankedFinding) -> set[str]:
    """The causes that a finding names."""
    fits = (causes for rule, part, causes in BY_TITLE if rule == finding.rule and part in finding.title)
    return set(next(fits, ())) or gpu_traces.answers(finding)


def table(found: tuple[Judged, ...] | None = None) -> str:
    """In numbers, then job by job, as Markdown."""
    rows = published() if found is None else found
    named = [bool(row.right_rank) for row in rows if row.look_at]
    alike = [row for row in rows if not row.look_at and row.right_rank is not None]
    held = [row.right_collective for row in rows if row.right_collective is not None]
    lines = [
        "| of recordings of many ranks | |",
        "| --- | --: |",
        f"| the first screen names the rank to look at | {sum(named)} of {len(named)} |",
        f"| no rank is to look at, and it names none | {sum(one.rank is None for one in alike)} of {len(alike)} |",
        f"| or it names one that is late in the recording by chance | {sum(map(_by_chance, alike))} of {len(alike)} |",
        f"| collectives hold ranks up, and it names one of them | {sum(held)} of {len(held)} |",
        *gpu_traces.counts([row.findings for row in rows], "recordings"),
        "",
        "| recording | job | look at | first screen | causes, in order | findings of 2 % or more | place | wrong |",
        "| --- | --- | --- | --- | --- | --- | --: | --- |",
    ]
    lines += [_row(row) for row in rows]
    return "\n".join(lines).replace("_", "\\_")


def _by_chance(one: Judged) -> bool:
    return one.rank is not None and bool(one.right_rank)


def _row(one: Judged) -> str:
    name = one.trace.removeprefix("distributed/").removeprefix("kineto/").split(".")[0]
    named = "no rank" if one.rank is None else f"rank {one.rank}"
    screen = "" if not one.told else named if one.right_rank else f"{named}, wrong"
    return f"| {name} | {one.job} | {_ranks(one.look_at)} | {screen} | {gpu_traces.said(one.findings)} |"


def _ranks(some: Sequence[int]) -> str:
    return f"rank {' or '.join(map(str, some))}" if some else "no rank"


def main() -> None:
    """Judge all recordings, print the table, and keep it if asked."""
    gpu_traces.run(
        "multi_rank_traces.json",
        lambda corpus: tuple(judged(verdict, diagnose.analyze(corpus / verdict.trace)) for verdict in verdicts()),
        table,
    )


if __name__ == "__main__":
    main()
