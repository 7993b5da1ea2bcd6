"""The diagnosis of jobs of many ranks beside a reviewer's verdicts, as benchmarks/multi_rank_traces.json has it."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from benchmarks import gpu_traces, multi_rank_traces
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.rulekit import page

VERDICTS = multi_rank_traces.verdicts()
PUBLISHED = {table.trace: table for table in multi_rank_traces.published()}
ROOT = Path(__file__).parent.parent


def test_every_rule_that_answers_for_a_cause_exists() -> None:
    rules = {path.stem for path in page.files(page.built_in_rules())}
    assert {rule for rule, _, _ in multi_rank_traces.BY_TITLE} <= rules


def test_every_verdict_is_published() -> None:
    assert [verdict.trace for verdict in VERDICTS] == list(PUBLISHED)


def test_the_documentation_has_the_published_table() -> None:
    assert multi_rank_traces.table() in (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_verdicts_do_not_contradict_themselves(verdict: multi_rank_traces.Verdict) -> None:
    assert all(low <= high for low, high in (cause.share for cause in verdict.causes))
    assert all(cause.share[1] >= gpu_traces.WORTH_SHARE for cause in verdict.causes)
    assert not {cause.cause for cause in verdict.causes} & {one.cause for one in verdict.must_not}
    assert not set(verdict.look_at) & set(verdict.tolerated)
    assert {*verdict.look_at, *verdict.tolerated} <= set(range(verdict.ranks))


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_what_is_published_is_what_is_said_today(
    verdict: multi_rank_traces.Verdict, analyzed: Callable[[str], Diagnosis]
) -> None:
    found = multi_rank_traces.judged(verdict, analyzed(verdict.trace))
    assert msgspec.to_builtins(found) == msgspec.to_builtins(PUBLISHED[verdict.trace])


def test_every_job_of_the_corpus_has_a_verdict(corpus: Path) -> None:
    folders = {path.name for path in (corpus / "distributed").iterdir() if any(path.glob("rank*.json.gz"))}
    assert folders == {Path(table).name for table in PUBLISHED if table.startswith("distributed/")}
