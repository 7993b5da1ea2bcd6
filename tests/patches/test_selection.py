"""Which fixes are in a patch: those that need no judgement and save something, and whatever is asked for."""

import msgspec
import pytest
from msgspec.structs import replace

from diagnose.contracts.trials import Trial, Verdict
from diagnose.fixes.setting import Safety
from diagnose.patches.errors import CannotPatch
from diagnose.patches.selection import kept, select
from tests.patches.patching import finding
from tests.reports.test_trials import WORKERS, report

FUSED = "patch:torch.optim(fused=True)"
FINDINGS = [
    finding(FUSED, 1, safety=Safety.ROUNDING),
    finding("wrap:torch.autocast", 2, safety=Safety.PRECISION),
    finding("wrap:DistributedDataParallel(broadcast_buffers=False)", 3, safety=Safety.NEEDS_JUDGEMENT),
    finding("patch:zero_grad(set_to_none=True)", 4, minor=True),
    finding(None, 5),
]


def test_what_needs_judgement_or_saves_little_has_to_be_asked_for() -> None:
    wanted, others = select(FINDINGS, ())
    assert [one.finding.rank_order for one in wanted] == [1]
    assert [other.why for other in others] == [
        "it needs your judgement, as it means less precise arithmetic (--fix 2 adds it)",
        "it needs your judgement, as it means another training (--fix 3 adds it)",
        "it would save less than 1 % (--fix 4 adds it)",
        "it needs an edit by hand",
    ]


@pytest.mark.parametrize("asked", [("2", "4"), ("rule_2", "rule_4"), ("xx02", "XX04")])
def test_what_is_asked_for_by_number_rule_or_code_is_all_there_is(asked: tuple[str, ...]) -> None:
    wanted, others = select(FINDINGS, asked)
    assert [one.finding.rank_order for one in wanted] == [2, 4]
    assert others == []


def test_a_name_of_no_finding_is_refused() -> None:
    with pytest.raises(CannotPatch, match=r"^--fix 9 names no finding of this run. There are: 1 rule_1, 2 rule_2, 3"):
        select(FINDINGS, ("1", "9"))
    with pytest.raises(CannotPatch, match=r"There are: none\.$"):
        select([], ("1",))


def test_of_several_fixes_the_first_that_needs_no_judgement_is_made() -> None:
    judged, safe = finding("wrap:torch.autocast", safety=Safety.PRECISION), finding(FUSED)
    both = msgspec.structs.replace(judged, fixes=(*judged.fixes, *safe.fixes))
    for asked, expected in (((), FUSED), (("1",), "wrap:torch.autocast")):
        ((only,), others) = select([both], asked)
        assert (only.fix.trial, others) == (expected, [])


@pytest.mark.parametrize(
    ("verdict", "made", "why"),
    [
        ("keep", [1, 4], []),
        ("inconclusive", [1], ["it would save less than 1 % (--fix 4 adds it)"]),
        (
            "slower",
            [],
            ["it was slower when it was tried (--fix 1 adds it)", "it was slower when it was tried (--fix 4 adds it)"],
        ),
    ],
)
def test_what_trials_have_found_counts_more_than_what_was_predicted(
    verdict: Verdict, made: list[int], why: list[str]
) -> None:
    alone = [FINDINGS[0], FINDINGS[3]]
    of = [replace(WORKERS, rule=one.rule, trial=(one.fixes[0].trial or "",), verdict=verdict) for one in alone]
    wanted, others = select(alone, (), report(*of))
    assert [one.finding.rank_order for one in wanted] == made
    assert [other.why for other in others] == why
    assert len(select(alone, ("1", "4"), report(*of))[0]) == 2


def test_what_trials_have_kept_is_made_whatever_judgement_it_needs() -> None:
    def tried(place: int, verdict: Verdict) -> Trial:
        one = FINDINGS[place]
        return replace(WORKERS, rule=one.rule, trial=(one.fixes[0].trial or "",), verdict=verdict)

    found = kept(FINDINGS, report(tried(0, "no_gain"), tried(1, "keep"), tried(3, "keep")))
    assert [one.finding.rank_order for one in found] == [2, 4]
    with pytest.raises(CannotPatch, match=r"^Trials of this run have kept no fix\.$"):
        kept(FINDINGS, report(tried(0, "slower")))
    with pytest.raises(CannotPatch, match=r"^This run has no trials yet\."):
        kept(FINDINGS, None)
