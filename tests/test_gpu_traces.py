"""The diagnosis of public GPU traces beside a reviewer's verdicts, as benchmarks/gpu_traces.json has it."""

from collections.abc import Callable

import pytest

from benchmarks import gpu_traces
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.rulekit import page

VERDICTS = gpu_traces.verdicts()
PUBLISHED = {table.trace: table for table in gpu_traces.published()}


def test_every_rule_that_answers_for_a_cause_exists() -> None:
    assert set(gpu_traces.ANSWERS) <= {path.stem for path in page.files(page.built_in_rules())}


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_the_published_table_is_what_is_said_today(
    verdict: gpu_traces.Verdict, analyzed: Callable[[str], Diagnosis]
) -> None:
    found = gpu_traces.judged(verdict, analyzed(verdict.trace))
    was = PUBLISHED[verdict.trace]
    assert (found.named, found.place, found.wrong, found.unshared) == (
        was.named,
        was.place,
        was.wrong,
        was.unshared,
    )
    assert [rule for rule, _ in found.said] == [rule for rule, _ in was.said]


@pytest.mark.parametrize("verdict", VERDICTS, ids=lambda one: one.trace)
def test_causes_are_in_order_and_worth_naming(verdict: gpu_traces.Verdict) -> None:
    assert all(
        low <= high and high >= gpu_traces.WORTH_SHARE for low, high in (cause.share for cause in verdict.causes)
    )
    assert not {cause.cause for cause in verdict.causes} & {one.cause for one in verdict.must_not}
