"""What is asked to be recorded is what the recording lacks."""

from pathlib import Path

import pytest
from msgspec.structs import replace

import diagnose
from diagnose.advice.merging import merged
from diagnose.advice.outcomes import ASKS, LOOK, NOTHING_MORE, PROFILED, asked, in_findings, without
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.rules import built_in

ALL = frozenset(ASKS)
SAMPLES = Path(__file__).parents[2] / "sample_traces"
FOLDERS = sorted(one.parent for one in SAMPLES.rglob("manifest.json"))
EVERY = 5
FEW = FOLDERS[:: max(len(FOLDERS) // 3, 1)]


@pytest.mark.parametrize(
    ("hint", "has", "left"),
    [
        ("Record with with_stack=True.", {"shapes"}, "Record with with_stack=True."),
        ("Record with with_stack=True.", {"stacks"}, NOTHING_MORE),
        ("Record with diagnose profile, or with_stack=True.", {PROFILED}, "Record with with_stack=True."),
        (
            'Record with diagnose profile, with with_stack=True, or save inside record_function("save_checkpoint").',
            {"stacks", PROFILED},
            'Save inside record_function("save_checkpoint").',
        ),
        ("Record with diagnose profile, with with_stack=True.", {PROFILED}, "Record with with_stack=True."),
        ("Record with diagnose profile. Only tables are seen.", {PROFILED}, "Only tables are seen."),
        (
            "Record with profile_memory=True, or diagnose profile --memory.",
            {PROFILED},
            "Record with profile_memory=True, or diagnose profile --memory.",
        ),
        ("Record with profile_memory=True, or diagnose profile --memory.", {"memory"}, NOTHING_MORE),
        ("Profile with ProfilerActivity.CPU and ProfilerActivity.CUDA.", {"ops"}, None),
        ("Record all ranks at once, as diagnose profile does.", {PROFILED}, None),
        ("Record with this version of diagnose profile.", {PROFILED}, None),
        ("", {PROFILED}, None),
    ],
)
def test_ways_that_were_taken_are_not_asked_for(hint: str, has: set[str], left: str | None) -> None:
    assert without(hint, frozenset(has)) == (hint if left is None else left)


def finding(line: int | None, *fixes: Fix, level: Level = Level.HIGH, says: str = "It takes 1 ms.") -> Finding:
    site = None if line is None else Site("train.py", line, "f")
    return Finding((Evidence(says),), (), fixes, Confidence(level, "seen"), site)


AGAIN = Fix("Record once with stacks, to see which lines run.", after="profile(with_stack=True)")
MOVE = Fix("Move it.")


def test_a_fix_that_asks_for_what_is_there_goes() -> None:
    with_stacks = facts_of('4 steps of 100\ncpu  "train.py(3): f" 0-10 | aten::mm 1-2').rank
    plain = facts_of("4 steps of 100\ncpu  aten::mm 1-2").rank
    rule = built_in("python_overhead").page

    def left(*fixes: Fix, rank: object = with_stacks) -> tuple[Fix, ...]:
        ((_, one),) = in_findings(rank, [(rule, finding(3, *fixes))])  # type: ignore[arg-type]
        return one.fixes

    assert left(AGAIN, MOVE) == (MOVE,)
    assert left(AGAIN) == (LOOK,)
    assert left() == ()
    assert left(AGAIN, MOVE, rank=plain) == (AGAIN, MOVE)


def test_what_one_fix_mends_is_one_finding() -> None:
    """Five ops of a loop, with one advice at one line: as sure as the least sure."""
    page, other = built_in("looped_ops").page, built_in("python_overhead").page
    five = [(page, finding(7, MOVE, says=f"Op {k} takes 1 ms.")) for k in range(4)]
    five.append((other, finding(7, MOVE, Fix("Or drop it."), level=Level.LOW, says="Op 4 takes 1 ms.")))
    ((rule, one),) = merged(five)
    assert rule is page
    assert [said.text for said in one.evidence] == [
        *(f"Op {k} takes 1 ms." for k in range(4)),
        "Op 4 takes 1 ms (LB02).",
    ]
    assert [fix.do for fix in one.fixes] == ["Move it.", "Or drop it."]
    assert one.confidence.level is Level.LOW


def test_other_lines_other_fixes_and_advice_without_a_line_stay_apart() -> None:
    page = built_in("looped_ops").page
    found = [(page, one) for one in (finding(7, MOVE), finding(8, MOVE), finding(7, Fix("Drop it.")))]
    found += [(page, finding(None, MOVE))] * 2
    found += [(page, replace(finding(7, MOVE), per_sample=True))]
    assert merged(found) == found


def test_one_setting_is_one_finding_wherever_its_line_is_unknown() -> None:
    page = built_in("looped_ops").page
    fused = Fix("Fuse it.", trial="patch:torch.optim(fused=True)")
    said = [(page, finding(None, fused, says="Adam.")), (page, finding(None, fused, says="SGD."))]
    assert len(merged(said)) == 1


def hints(found: Diagnosis) -> list[str]:
    fixes = [f"{fix.do} {fix.after}" for one in found.findings for fix in one.fixes if fix.do.startswith("Record")]
    outcomes = [outcome.how_to_record_it for outcome in found.outcomes]
    return fixes + outcomes + [absent.how_to_record_it for absent in found.absent]


def asks_for_what_is_there(found: Diagnosis) -> list[str]:
    has = frozenset({*found.provenance.sources[0].recorded, PROFILED})
    ways = [way for hint in hints(found) for sentence in hint.split(". ") for way in sentence.split(", or ")]
    return [way for way in ways if asked(way, has & ALL)]


@pytest.mark.parametrize("folder", FEW, ids=lambda one: one.name)
def test_no_rule_asks_to_record_what_a_recording_has(folder: Path) -> None:
    assert asks_for_what_is_there(diagnose.analyze(folder)) == []


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS[::EVERY], ids=lambda one: one.name)
def test_no_rule_asks_to_record_what_a_fifth_of_all_recordings_have(folder: Path) -> None:
    assert asks_for_what_is_there(diagnose.analyze(folder)) == []
