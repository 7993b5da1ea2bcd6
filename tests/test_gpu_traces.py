"""The diagnosis of public GPU traces beside a reviewer's verdicts, as benchmarks/gpu_traces.json has it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks import gpu_traces, multi_rank_traces
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.rulekit import page

VERDICTS = gpu_traces.verdicts()
PUBLISHED = {table.trace: table for table in gpu_traces.published()}


def test_every_rule_that_answers_for_a_cause_exists() -> None:
    named = {*gpu_traces.ANSWERS, *(rule for rule, _, _ in multi_rank_traces.BY_TITLE)}
    assert named <= {path.stem for path in page.files(page.built_in_rules())}


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_the_published_table_is_what_is_said_today(
    verdict: gpu_traces.Verdict, analyzed: Callable[[str], Diagnosis]
) -> None:
    found = gpu_traces.judged(verdict, analyzed(verdict.trace))
    was = PUBLISHED[verdict.trace]
    assert (found.named, found.place, found.wrong, found.unshared) == (was.named, was.place, was.wrong, was.unshared)
    assert [rule for rule, _ in found.said] == [rule for rule, _ in was.said]


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_causes_are_in_order_and_worth_naming(verdict: gpu_traces.Verdict) -> None:
    assert all(
        low <= high and high >= gpu_traces.WORTH_SHARE for low, high in (cause.share for cause in verdict.causes)
    )
    assert not {cause.cause for cause in verdict.causes} & {one.cause for one in verdict.must_not}


JOBS = multi_rank_traces.verdicts()
PUBLISHED_JOBS = {table.trace: table for table in multi_rank_traces.published()}


def test_every_verdict_is_published() -> None:
    assert [verdict.trace for verdict in JOBS] == list(PUBLISHED_JOBS)


@pytest.mark.parametrize("verdict", JOBS, ids=lambda one: one.trace)
def test_verdicts_do_not_contradict_themselves(verdict: multi_rank_traces.Verdict) -> None:
    assert all(low <= high for low, high in (cause.share for cause in verdict.causes))
    assert all(cause.share[1] >= gpu_traces.WORTH_SHARE for cause in verdict.causes)
    assert not {cause.cause for cause in verdict.causes} & {one.cause for one in verdict.must_not}
    assert not set(verdict.look_at) & set(verdict.tolerated)
    assert {*verdict.look_at, *verdict.tolerated} <= set(range(verdict.ranks))


@pytest.mark.parametrize("verdict", JOBS, ids=lambda one: one.trace)
def test_what_is_published_is_what_is_said_today(
    verdict: multi_rank_traces.Verdict, analyzed: Callable[[str], Diagnosis]
) -> None:
    found = multi_rank_traces.judged(verdict, analyzed(verdict.trace))
    assert msgspec.to_builtins(found) == msgspec.to_builtins(PUBLISHED_JOBS[verdict.trace])


def test_every_job_of_the_corpus_has_a_verdict(corpus: Path) -> None:
    folders = {path.name for path in (corpus / "distributed").iterdir() if any(path.glob("rank*.json.gz"))}
    assert folders == {Path(table).name for table in PUBLISHED_JOBS if table.startswith("distributed/")}
