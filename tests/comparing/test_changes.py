"""Findings, settings and amounts of work that differ between two recordings."""

from diagnose.comparing import changes
from diagnose.contracts.baseline import GroupTime, RankStep
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import Part
from diagnose.trace.frames import Site
from tests.runs import LINE, MS, finding, run, spent


def test_a_finding_is_fixed_only_if_its_rule_looked_again_and_new_only_if_it_had_looked_before() -> None:
    loader, sync = finding("loader", 5 * MS), finding("sync", 4 * MS)
    both, one = run(findings=(loader, sync), looked=("loader", "sync")), run(looked=("loader",))
    found = changes.findings(both, one)
    assert (found.fixed, found.not_looked_at) == ((loader,), (sync,))
    assert (found.new, found.grown, found.not_looked_at_before) == ((), (), ())
    back = changes.findings(one, both)
    assert (back.new, back.not_looked_at_before) == ((loader,), (sync,))


def test_a_finding_has_grown_if_it_saves_more_than_its_range_was() -> None:
    before = run(findings=(finding("loader", 50), finding("sync", 50)), looked=("loader", "sync"))
    after = run(findings=(finding("loader", 56), finding("sync", 55)), looked=("loader", "sync"))
    (grown,) = changes.findings(before, after).grown
    assert (grown.before.likely_ns, grown.after.likely_ns) == (50, 56)


def test_minor_findings_come_and_go_unmentioned_but_one_that_becomes_more_has_grown() -> None:
    small, large = finding("loader", 50, minor=True), finding("loader", 5000)
    looked = ("loader", "sync")
    found = changes.findings(
        run(findings=(small, finding("sync", 9, minor=True)), looked=looked), run(findings=(large,), looked=looked)
    )
    assert [one.after.rule for one in found.grown] == ["loader"]
    assert (found.fixed, found.new) == ((), ())


def test_findings_of_one_function_are_the_same_when_lines_move_and_count_together() -> None:
    lines = [Site("src/train.py", line, "main") for line in (10, 12, 90)]
    before = run(findings=tuple(finding("sync", 50, one) for one in lines[:2]), looked=("sync",))
    moved = run(findings=tuple(finding("sync", 50, one) for one in lines[1:]), looked=("sync",))
    after = run(findings=tuple(finding("sync", 50, one) for one in lines), looked=("sync",))
    assert changes.findings(before, moved) == changes.findings(before, before)
    found = changes.findings(before, after)
    assert [(one.before.likely_ns, one.after.likely_ns) for one in found.grown] == [(100, 150)]
    assert (found.new, found.fixed) == ((), ())


def test_a_rule_that_finds_another_place_is_neither_fixed_nor_new() -> None:
    places, looked = [Site("src/train.py", 10, name) for name in ("main", "step")], ("sync", "loader")
    sides = (run(findings=(finding("sync", 50, one), finding("loader", 9)), looked=looked) for one in places)
    found = changes.findings(*sides)
    assert (found.fixed, found.new, found.grown) == ((), (), ())


def test_settings_that_differ_are_told_and_what_their_part_adds_where_that_is_most_of_it() -> None:
    before = run(
        spent(Part.COMPUTE, "gemm", 10 * MS, "aten::mm"),
        settings={"loader 0 num_workers": "4", "torch cudnn_benchmark": "True", "version torch": "2.10", "env A": "1"},
    )
    after = run(
        spent(Part.COMPUTE, "gemm", 11 * MS, "aten::mm"),
        spent(Part.IDLE, "loader", 8 * MS, site=LINE),
        settings={"loader 0 num_workers": "0", "torch cudnn_benchmark": "False", "version torch": "2.11", "env A": "1"},
    )
    found = changes.settings(before, after, changes.parts([before], [after], 10 * MS, 19 * MS))
    assert [(one.name, one.before, one.after, one.acts_on, one.explains_ns) for one in found] == [
        ("loader 0 num_workers", "4", "0", "data loading", 8 * MS),
        ("version torch", "2.10", "2.11", "", None),
        ("torch cudnn_benchmark", "True", "False", "matrix products and convolutions", None),
    ]
    (only,) = changes.settings(run(), run(settings={"version nccl": "2.21"}), ())
    assert (only.before, only.after, only.explains_ns) == (None, "2.21", None)


def test_what_makes_the_sides_different_things_is_said() -> None:
    before = run(devices=("A100",), samples_per_step=32)
    after = run(devices=("H100", "H100"), samples_per_step=64, world_size=8, format="nsight", measure=Measure.WINDOW)
    assert list(changes.incomparable(before, after)) == [
        "The devices differ: A100 before, H100 after.",
        "The numbers of ranks differ: 1 before, 8 after.",
        "Samples per step and rank differ: 32 before, 64 after.",
        "The recording tools differ: kineto before, nsight after.",
        "The recording after marks no steps, so all of it counts as one step.",
    ]
    assert list(changes.incomparable(before, before)) == []
    more = run(flops_per_step=2 * 10**9), run(flops_per_step=3 * 10**9)
    assert list(changes.incomparable(*more)) == ["Matrix FLOPs per step differ: 1.50 times as many after as before."]


def test_the_same_amount_of_work_is_compared_where_batches_differ() -> None:
    before = run(samples_per_step=32, flops_per_step=2 * 10**9)
    after = run(samples_per_step=64, flops_per_step=4 * 10**9)
    told = [(one.unit, one.before_ns, one.after_ns) for one in changes.per(before, after, 6400, 9600)]
    assert told == [("sample", 200.0, 150.0), ("GFLOP", 3200.0, 2400.0)]
    assert list(changes.per(before, before, 6400, 9600)) == []


def test_groups_of_ranks_are_told_side_by_side_those_that_hold_ranks_up_longest_first() -> None:
    def group(label: str, wait_ns: int) -> GroupTime:
        return GroupTime(label=label, calls=1, wait_ns=wait_ns, transfer_ns=10)

    before = run(groups=(group("all-reduce", 100), group("all-gather", 300)))
    after = run(groups=(group("all-reduce", 900), group("broadcast", 50)))
    found = changes.groups(before, after)
    waits = [(one.label, *(side and side.wait_ns for side in (one.before, one.after))) for one in found]
    assert waits == [("all-reduce", 100, 900), ("all-gather", 300, None), ("broadcast", None, 50)]


def test_ranks_of_both_jobs_are_told_side_by_side() -> None:
    def rank(number: int, computing_ns: int) -> RankStep:
        return RankStep(rank=number, step_ns=100, computing_ns=computing_ns, waiting_ns=None)

    found = changes.ranks(run(ranks=(rank(0, 50), rank(1, 60))), run(ranks=(rank(1, 70), rank(2, 80))))
    assert [(one.before.computing_ns, one.after.computing_ns) for one in found] == [(60, 70)]
