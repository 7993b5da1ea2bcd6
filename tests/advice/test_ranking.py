"""The order of findings and their prices, on drawings whose answers follow by hand."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from diagnose.advice import ranking
from diagnose.advice.pricing import Step, ranged
from diagnose.advice.ranking import Ranked
from diagnose.contracts.finding import Caution, Confidence, Finding, Fix, Kind, Level, RankedFinding, Together
from diagnose.facts.core.base import Facts
from diagnose.facts.core.spans import host_spans
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import work_table
from diagnose.pipeline import present, study
from diagnose.replay.edits import Between, Edit, Number, Shorten
from diagnose.replay.saving import Basis, Replay
from diagnose.rulekit import engine, testing
from diagnose.rulekit.check import Fires
from diagnose.rulekit.engine import RuleSet
from diagnose.rulekit.page import Page
from diagnose.rulekit.testing import Example
from diagnose.synthetic.reading import facts_of
from diagnose.trace.enums import SpanKind
from diagnose.trace.model import Ground, IntegrityNote, Severity
from tests.rules import built_in

MS = 1_000_000


def page(name: str) -> Page:
    return Page(name, "family", name.upper(), f"The title of {name}", "", {}, (), (), (), ())


def finding(*edits: Edit, basis: Basis = Basis.REPLAYED, host_bound: bool = False) -> Finding:
    sure = Confidence(Level.HIGH, "it is drawn")
    return Finding((), edits, (Fix("Change it."),), sure, basis=basis, host_bound=host_bound)


def shorter(facts: Facts, name: str, keep: Number = 0.0) -> Edit:
    return Shorten(host_spans(facts, SpanKind.ANNOTATION, named=lambda one: one == name).ids, keep)


def ordered(facts: Facts, found: dict[str, Finding], cautions: Sequence[Caution] = ()) -> Ranked:
    pairs = [(page(name), one) for name, one in found.items()]
    return ranking.ranked(pairs, Replay(facts), steps(facts), 0, cautions)


def in_ms(found: RankedFinding) -> tuple[str, float, float | None]:
    saving = found.saving
    after = None if saving.after_above_ns is None else saving.after_above_ns / 1e6
    return found.rule, saving.likely_ns / 1e6, after


def limits(likely_ms: float, basis: Basis = Basis.REPLAYED) -> tuple[int, int, int]:
    """Low, likely and high of 100 ms."""
    return ranged(round(likely_ms * MS), 0, 100 * MS, basis)


HOST_BOUND = """
    4 steps of 100
    cpu  a 0-30 | b 30-50 | c 50-60 | aten::mm 60-61
    gpu  sgemm 60.01-90 @60
"""


@pytest.fixture(scope="module")
def facts() -> Facts:
    return facts_of(HOST_BOUND)


def test_faults_come_before_options_and_where_to_look_comes_last(facts: Facts) -> None:
    """However much each saves: a is 30 ms, b 20, c 10. Options add to a sum of their own, where to look to none."""
    some = {name: finding(shorter(facts, name)) for name in "abc"}
    for look, option, fault in itertools.permutations("abc"):
        kinds = {look: Kind.WHERE_TO_LOOK, option: Kind.OPTION, fault: Kind.FAULT}
        found = ordered(facts, {name: replace(one, kind=kinds[name]) for name, one in some.items()})
        assert [(one.rule, one.kind) for one in found.findings] == [
            (name, kinds[name]) for name in (fault, option, look)
        ]
        ms = {"a": 30, "b": 20, "c": 10}
        assert (found.together, found.faults_together) == (Together(*limits(ms[fault])),) * 2
        assert found.all_together == Together(*limits(ms[fault] + ms[option]))


def test_an_option_alone_is_no_fault(facts: Facts) -> None:
    found = ordered(facts, {"a": replace(finding(shorter(facts, "a")), kind=Kind.OPTION)})
    assert (found.together, found.faults_together) == (None, None)
    assert found.all_together == Together(*limits(30))
    nothing = ordered(facts, {"a": replace(finding(shorter(facts, "a")), kind=Kind.WHERE_TO_LOOK)})
    assert (nothing.together, nothing.faults_together, nothing.all_together) == (None, None, None)
    assert [one.shortens for one in (*found.findings, *nothing.findings)] == [True, False]


def test_what_needs_another_fix_first_comes_after_it_however_much_more_it_saves(facts: Facts) -> None:
    more, less = finding(shorter(facts, "a")), finding(shorter(facts, "c"))
    assert [one.rule for one in ordered(facts, {"more": more, "less": less}).findings] == ["more", "less"]
    more = replace(more, after=frozenset({"LESS"}))
    found = ordered(facts, {"more": more, "less": less})
    assert [in_ms(one) for one in found.findings] == [("less", 10, 10), ("more", 30, 30)]
    assert [in_ms(one) for one in ordered(facts, {"more": more}).findings] == [("more", 30, 30)]
    same = {"more": more, "less": replace(finding(shorter(facts, "a")), unless_above=True)}
    assert [one.rule for one in ordered(facts, same).findings if not one.minor] == ["less"]


def test_a_bound_is_told_unless_another_finding_touches_it_or_saves_it(facts: Facts) -> None:
    bound = replace(finding(shorter(facts, "a"), basis=Basis.AT_MOST), unless_above=True, kind=Kind.WHERE_TO_LOOK)
    found = ordered(facts, {"a": bound, "b": finding(shorter(facts, "b"))})
    first, second = found.findings  # 15 likely of 30, and 20
    assert (second.saving.low_ns, second.saving.likely_ns, second.saving.high_ns) == (0, 15_000_000, 30_000_000)
    assert (first.rule, second.saving.basis, second.shortens) == ("b", Basis.AT_MOST, False)
    assert second.saving.after_above_ns == 15_000_000
    assert found.faults_together == Together(*limits(20))
    touching = finding(shorter(facts, "a", 0.9))
    assert [one.rule for one in ordered(facts, {"a": bound, "t": touching}).findings] == ["t"]
    more = replace(touching, per_sample=True)
    assert {one.rule for one in ordered(facts, {"a": bound, "t": more}).findings} == {"a", "t"}


def test_what_is_in_line_adds_up(facts: Facts) -> None:
    found = ordered(facts, {name: finding(shorter(facts, name)) for name in "cab"})
    assert [in_ms(one) for one in found.findings] == [("a", 30, 30), ("b", 20, 20), ("c", 10, 10)]
    assert [one.rank_order for one in found.findings] == [1, 2, 3]
    assert [one.share_of_step for one in found.findings] == pytest.approx([0.3, 0.2, 0.1])


@pytest.mark.parametrize(("busy", "others_ms"), [(0.0, 0.0), (0.5, 3.15), (1.0, 6.3)])
def test_what_is_left_gets_faster_as_far_as_it_is_computed_on_the_cpu(
    facts: Facts, busy: float, others_ms: float
) -> None:
    """Of 100 ms 30 are saved, and of the other 70, at full use, 0.3 x 30 %."""
    (found,) = ranking.ranked(
        [(page("a"), finding(shorter(facts, "a")))],
        Replay(facts),
        steps(facts),
        0,
        step=Step(100 * MS, 100 * MS, 100 * MS, busy=busy),
    ).findings
    assert in_ms(found)[1] == pytest.approx(30 + others_ms)


def test_what_is_too_much_to_list_is_one_finding() -> None:
    """Seven parts of a rule, of 7 to 1 ms: four are listed, and 3, 2 and 1 ms together."""
    spans = " | ".join(f"p{ms} {10 * ms}-{11 * ms}" for ms in range(1, 8))
    facts = facts_of(f"4 steps of 100\ncpu {spans} | aten::mm 90-91\ngpu sgemm 90.01-99 @90")
    sure = [Level.HIGH] * 5 + [Level.LOW, Level.HIGH]
    parts = [
        (page("a"), replace(finding(shorter(facts, f"p{ms}")), confidence=Confidence(level, "drawn")))
        for ms, level in zip(range(1, 8), reversed(sure), strict=True)
    ]
    found = ranking.ranked(parts, Replay(facts), steps(facts), 0).findings
    assert [in_ms(one)[1] for one in found] == [7, 6, 5, 4, 6]
    (rest,) = [one for one in found if one.evidence]
    assert (rest.evidence[0].text, rest.evidence[0].value) == ("3 more of these, the largest being:", 3)
    assert (rest.saving.likely_ns, rest.confidence.level) == (6_000_000, Level.LOW)


def test_what_is_certain_comes_before_a_larger_guess(facts: Facts) -> None:
    """20 ms to count on, against half of 30."""
    certain, guess = finding(shorter(facts, "b")), finding(shorter(facts, "a"))
    for level, order in ((Level.LOW, ["certain", "guess"]), (Level.HIGH, ["guess", "certain"])):
        found = ordered(
            facts,
            {
                "certain": replace(certain, confidence=Confidence(Level.HIGH, "drawn")),
                "guess": replace(guess, confidence=Confidence(level, "drawn")),
            },
        )
        assert [in_ms(one)[:2] for one in found.findings] == [
            (name, {"certain": 20, "guess": 30}[name]) for name in order
        ]


def test_what_lets_a_step_do_more_saves_nothing_of_the_step(facts: Facts) -> None:
    """It comes after faults, and what all save together leaves it out."""
    more = replace(finding(shorter(facts, "a")), per_sample=True)
    found = ordered(facts, {"more": more, "less": finding(shorter(facts, "b"))})
    assert [(in_ms(one)[0], one.per_sample, one.saving.after_above_ns) for one in found.findings] == [
        ("less", False, 20_000_000),
        ("more", True, None),
    ]
    assert found.together.likely_ns == 20_000_000


def test_the_same_time_is_not_saved_twice(facts: Facts) -> None:
    found = ordered(facts, {"all": finding(shorter(facts, "a")), "half": finding(shorter(facts, "a", 0.5))})
    assert [in_ms(one) for one in found.findings] == [("all", 30, 30), ("half", 15, 0)]


def test_order_is_by_what_each_adds(facts: Facts) -> None:
    """Alone a saves 30, a and b together 50, c 40. After c, which contains a and a part of b, a adds nothing."""
    found = ordered(
        facts,
        {
            "a": finding(shorter(facts, "a")),
            "b": finding(shorter(facts, "b")),
            "a_and_half_b": finding(shorter(facts, "a"), shorter(facts, "b", 0.5)),
        },
    )
    # The largest first: 40. Then b's other half: 10. Then a: nothing, though alone it is the second.
    assert [in_ms(one) for one in found.findings] == [("a_and_half_b", 40, 40), ("b", 20, 10), ("a", 30, 0)]


def test_small_savings_are_minor_and_nothing_is_no_finding(facts: Facts) -> None:
    kept = {"large": 0.9, "minor": 0.98, "nothing": 0.999}  # of 30 ms in 100: 3, 0.6 and 0.03 ms
    found = ordered(facts, {name: finding(shorter(facts, "a", keep)) for name, keep in kept.items()})
    assert [(one.rule, one.minor) for one in found.findings] == [("large", False), ("minor", True)]
    assert [(rule, saving.high_ns) for rule, saving in found.costless] == [("nothing", limits(0.03)[2])]


SIDE_BY_SIDE = """
    4 steps of 100
    cpu  aten::mm 0-1 | a 1-55 | b 55-60 | cudaDeviceSynchronize 60-100
    gpu  sgemm 0.01-100 @0
"""


def test_what_saves_only_once_others_are_fixed_comes_last_with_what_it_saves_then() -> None:
    """The host works for 60 ms beside a GPU that takes 100. Halved, it takes 50: then `a` holds up 10."""
    facts = facts_of(SIDE_BY_SIDE)
    gpu = Shorten(work_table(facts).ids, 0.5)
    host = {"a": finding(shorter(facts, "a")), "b": finding(shorter(facts, "b", 0.9))}
    found = ordered(facts, {**host, "gpu": finding(gpu)})
    first, last = found.findings
    assert (first.rule, last.rule) == ("gpu", "a")
    assert in_ms(first)[1:] == pytest.approx((40, 40), abs=0.02)
    assert in_ms(last)[1:] == pytest.approx((0, 10), abs=0.02)
    assert (last.minor, last.share_of_step) == (True, pytest.approx(0.1, abs=0.001))
    assert last.hidden == pytest.approx(limits(10), abs=20_000)
    assert [rule for rule, _ in found.costless] == ["b"]


def test_nothing_is_hidden_where_nothing_is_to_be_fixed() -> None:
    found = ordered(facts := facts_of(SIDE_BY_SIDE), {"a": finding(shorter(facts, "a"))})
    assert (found.findings, [rule for rule, _ in found.costless]) == ((), ["a"])


def test_a_range_of_savings(facts: Facts) -> None:
    some = finding(shorter(facts, "a", Between(0.9, 0.5, 0.0)), basis=Basis.RULE_OF_THUMB)
    saving = ordered(facts, {"some": some}).findings[0].saving
    assert (saving.low_ns, saving.likely_ns, saving.high_ns) == limits(15, Basis.RULE_OF_THUMB)
    assert saving.basis is Basis.RULE_OF_THUMB
    assert saving.replayed_ns == (97_000_000, 85_000_000, 70_000_000)


def test_no_saving_exceeds_what_the_busiest_resource_leaves(facts: Facts) -> None:
    """The GPU works for 29.99 ms of each step whatever the host does."""
    everything = finding(Shorten(np.arange(len(facts.rank.spans)), 1.0), *(shorter(facts, name) for name in "abc"))
    saving = ordered(facts, {"all": everything}).findings[0].saving
    assert saving.likely_ns == 60_000_000
    assert saving.replayed_ns == (40_000_000,) * 3


def test_cautions_lower_what_they_are_about(facts: Facts) -> None:
    found = {"host": finding(shorter(facts, "a"), host_bound=True), "other": finding(shorter(facts, "b"))}
    slowed = Caution("recording was slow", "Times are too long.", lowers_host=True)
    levels = {one.rule: one.confidence for one in ordered(facts, found, [slowed]).findings}
    assert levels["host"] == Confidence(Level.MEDIUM, "it is drawn; recording was slow")
    assert levels["other"] == Confidence(Level.MEDIUM, "it is drawn")
    doubtful = Caution("one step", "Record more.", lowers_all=True)
    assert {one.confidence.level for one in ordered(facts, found, [doubtful]).findings} == {Level.MEDIUM}


def test_what_the_replay_cannot_explain_makes_estimates_bounds() -> None:
    """Nothing recorded explains why the kernels start 70 ms after their launch."""
    facts = facts_of(
        """
        4 steps of 100
        cpu  a 0-9 | aten::mm 10-11 | sync 12-100
        gpu  sgemm 80-99.99 @10
        """
    )
    replay = Replay(facts)
    assert replay.quality.unexplained_share > 0.3
    found = ordered(facts, {"a": finding(shorter(facts, "a"))}).findings[0]
    assert (found.saving.low_ns, found.saving.basis) == (0, Basis.BOUNDED)
    assert found.confidence.level is Level.LOW
    assert "cannot explain" in found.confidence.why


def test_savings_are_of_the_step_without_the_profiler(facts: Facts) -> None:
    """It takes 80 ms instead of 100: 30 ms of the recorded step are 24 of that one."""
    found = {"a": finding(shorter(facts, "a")), "b": finding(shorter(facts, "b"))}
    pairs = [(page(name), one) for name, one in found.items()]
    placed = ranking.ranked(pairs, Replay(facts), steps(facts), 0, step=Step(80 * MS, 80 * MS, 100 * MS)).findings
    assert [in_ms(one) for one in placed] == [("a", 24, 24), ("b", 16, 16)]
    assert [one.share_of_step for one in placed] == pytest.approx([0.3, 0.2])


def test_work_of_the_device_takes_what_it_took_and_the_rest_is_what_the_step_leaves(facts: Facts) -> None:
    """Of 100 ms the GPU takes 29.99; the other 70.01 are 50.01 of a step of 80. Steps of another kind add 10."""
    step = Step(90 * MS, 80 * MS, 100 * MS, device_ns=29_990_000, longer_ns={"loader": 8 * MS})
    found = {"a": replace(finding(shorter(facts, "a")), phase="loader"), "b": finding(shorter(facts, "b"))}
    pairs = [(page(name), one) for name, one in found.items()]
    placed = ranking.ranked(pairs, Replay(facts), steps(facts), 0, step=step)
    scale = 50.01 / 70.01
    assert [in_ms(one)[1] for one in placed.findings] == pytest.approx([30 * scale + 8, 20 * scale], abs=1e-5)
    assert placed.faults_together.likely_ns == pytest.approx((50 * scale + 8) * MS, abs=10)


def test_a_saving_below_the_noise_of_the_step_is_not_sure(facts: Facts) -> None:
    """30, 20 and 10 of 100 ms, where the step may be off by 15: one level less, one level less, and low."""
    noisy = Caution("steps differ", "Record more.", lowers_all=True, noise_share=0.15)
    found = ordered(facts, {name: finding(shorter(facts, name)) for name in "abc"}, [noisy]).findings
    assert [one.confidence.level for one in found] == [Level.MEDIUM, Level.MEDIUM, Level.LOW]
    assert found[2].confidence.why == "it is drawn; below the noise (15.0 %): measure before you keep it"


def test_each_doubt_makes_a_finding_less_sure(facts: Facts) -> None:
    two = [Caution(why, "", lowers_all=True) for why in ("few steps", "a busy machine")]
    (found,) = ordered(facts, {"a": finding(shorter(facts, "a"))}, two).findings
    assert found.confidence == Confidence(Level.LOW, "it is drawn; few steps; a busy machine")


def test_what_is_sure_is_priced_together_and_so_is_all(facts: Facts) -> None:
    """30 and 20 ms of the three are sure: together 50 of 100 ms, and 60 with the third."""
    noisy = Caution("steps differ", "", lowers_all=True, noise_share=0.15)
    found = ordered(facts, {name: finding(shorter(facts, name)) for name in "abc"}, [noisy])
    assert (found.together, found.faults_together) == (Together(*limits(50)), Together(*limits(60)))
    assert (ordered(facts, {}).together, ordered(facts, {}).faults_together) == (None, None)


def test_where_time_is_lost_is_left_out_if_a_cause_explains_most_of_it() -> None:
    rank = """
        4 steps of 100
        rank {rank} of 2
        cpu     load 0-{fetched} | aten::mm {fetched}.2-{fetched}.3 | c10d::allreduce_ {fetched}.5-{fetched}.6
        gpu     sgemm {fetched}.3-{end} @{fetched}.25
        gpu 20  allreduce {end}-99.9 @{fetched}.55 group_size=2
    """
    facts = facts_of(rank.format(rank=0, fetched=40, end=80) + "---" + rank.format(rank=1, fetched=1, end=41))

    def found(*rules: str) -> list[str]:
        return [finding.code for finding in present(facts, [built_in(rule) for rule in rules]).findings]

    assert found("straggler") == ["ST01"]
    assert found("straggler", "dataloader_starvation") == ["DL02"]


FIRING = [
    one for rule in engine.load(RuleSet()) for one in testing.examples_of(rule) if isinstance(one.expected, Fires)
]


def found(drawing: str, rule: str, *doubts: Ground, severity: Severity = Severity.WARNING) -> list[RankedFinding]:
    """What a rule finds beside a note that doubts this."""
    rank = facts_of(drawing).rank
    note = IntegrityNote("Something is damaged.", "", severity, doubts)
    return list(study(Facts(replace(rank, integrity=(*rank.integrity, note))), [built_in(rule)]).findings)


@pytest.mark.slow
@pytest.mark.parametrize("example", FIRING, ids=lambda one: one.name)
def test_nothing_is_sure_beside_a_note_on_all_that_it_rests_on(example: Example) -> None:
    drawing, rule = example.expected.drawing, example.rule.page.id
    said = found(drawing, rule, *Ground)
    assert all(one.confidence.level is not Level.HIGH for one in said)
    assert all("are unreliable here, see Notes" in one.confidence.why for one in said)


READS = """
    4 steps of 100
    cpu  aten::mm 40-41 | aten::item 42-100 | sync 43-99
    gpu  sgemm 40.01-98 @40 | d2h 98.5-98.51 @42.5 8B
"""


@pytest.mark.parametrize(
    ("doubted", "counts"),
    [
        (Ground.DEVICE_IDLE, True),
        (Ground.CLOCKS, True),
        (Ground.HOST_TIMES, True),
        (Ground.RANKS, False),
        (Ground.LAUNCHES, False),
    ],
)
def test_a_wait_rests_on_when_the_device_is_idle(doubted: Ground, counts: bool) -> None:
    (one,) = found(READS, "scalar_syncs", doubted)
    assert ("are unreliable here, see Notes" in one.confidence.why) is counts


def test_a_note_of_lost_device_work_leaves_a_bound() -> None:
    (sound,) = found(READS, "scalar_syncs")
    (one,) = found(READS, "scalar_syncs", Ground.DEVICE_IDLE, severity=Severity.ERROR)
    assert (one.confidence.level, one.saving.basis, one.saving.low_ns) == (Level.LOW, Basis.BOUNDED, 0)
    assert one.saving.likely_ns == sound.saving.likely_ns
