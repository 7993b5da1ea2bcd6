"""The parts of a difference add up to it, and say what in them has changed."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.comparing.changes import mean_rows, parts
from diagnose.contracts.baseline import Run
from diagnose.contracts.comparison import Change, ChangeKind, PartKind
from diagnose.facts.run.time_attribution import AttributedTime, Part
from diagnose.trace.frames import Site
from tests.runs import LINE, MS, run, spent

GEMM = {"part": Part.COMPUTE, "kind": "gemm"}


def mm(ms: int, **told: Any) -> AttributedTime:
    return spent(**GEMM, ns=ms * MS, op="aten::mm", **told)


def loading(ms: int, **told: Any) -> AttributedTime:
    return spent(Part.IDLE, "loader", ms * MS, site=LINE, **told)


def changes(before: Run, after: Run) -> list[Change]:
    sums = (sum(row.ns for row in one.spending) for one in (before, after))
    return [change for part in parts([before], [after], *sums) for change in part.detail]


def test_each_part_is_told_and_the_largest_change_comes_first() -> None:
    before, after = run(mm(60), loading(40)), run(mm(61), spent(Part.EXPOSED_COPY, "memory", 5 * MS))
    found = parts([before], [after], 100 * MS, 66 * MS)
    assert [(one.kind, one.of, one.before_ns, one.after_ns, one.ns) for one in found] == [
        (PartKind.IDLE, "loader", 40 * MS, 0, -40 * MS),
        (PartKind.EXPOSED_COPY, "memory", 0, 5 * MS, 5 * MS),
        (PartKind.COMPUTE, "gemm", 60 * MS, 61 * MS, MS),
    ]
    assert found[0].what == "GPU idle: data loading"


def test_what_recorded_steps_take_longer_than_those_without_the_profiler_is_a_part() -> None:
    before, after = run(spent(**GEMM, ns=110 * MS)), run(spent(**GEMM, ns=118 * MS))
    work, profiler = parts([before], [after], 100 * MS, 105 * MS)
    assert (work.kind, work.ns, profiler.kind) == (PartKind.COMPUTE, 8 * MS, PartKind.PROFILER)
    assert (profiler.before_ns, profiler.after_ns, profiler.ns) == (-10 * MS, -13 * MS, -3 * MS)


def test_a_side_that_does_not_say_where_its_step_goes_leaves_one_part() -> None:
    (only,) = parts([run(times_ns=(5 * MS,))], [run(spent(**GEMM, ns=9 * MS))], 5 * MS, 9 * MS)
    assert (only.kind, only.ns, only.detail) == (PartKind.NOT_KNOWN, 4 * MS, ())


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        ([], [mm(5)], ChangeKind.NEW),
        ([mm(5)], [], ChangeKind.GONE),
        ([mm(5, calls=5)], [mm(9, calls=9)], ChangeKind.MORE_CALLS),
        ([mm(9, calls=9)], [mm(5, calls=5)], ChangeKind.FEWER_CALLS),
        ([mm(5, calls=5)], [mm(9, calls=6)], ChangeKind.SLOWER),
        ([mm(9, calls=5)], [mm(5, calls=5)], ChangeKind.FASTER),
        ([loading(5)], [loading(9, calls=3)], ChangeKind.LONGER),
    ],
)
def test_what_kind_of_change_it_is(before: list[AttributedTime], after: list[AttributedTime], kind: ChangeKind) -> None:
    others = spent(Part.COMPUTE, "conv", 50 * MS, "aten::conv")
    (change,) = changes(run(others, *before), run(others, *after))
    assert change.change is kind


def test_a_kernel_of_another_name_is_the_same_op_and_both_names_are_told() -> None:
    (change,) = changes(run(mm(10, name="volta_sgemm")), run(mm(4, name="ampere_tf32")))
    assert (change.what, change.before_name, change.after_name) == ("aten::mm", "volta_sgemm", "ampere_tf32")
    assert (change.change, change.ns) == (ChangeKind.FASTER, -6 * MS)


def test_where_one_side_knows_no_ops_kernels_are_told_by_name() -> None:
    (change,) = changes(run(mm(10, name="sgemm")), run(spent(**GEMM, ns=12 * MS, name="sgemm")))
    assert (change.what, change.change, change.ns) == ("sgemm", ChangeKind.SLOWER, 2 * MS)


def test_lines_of_one_function_are_the_same_though_the_file_was_edited_and_moved() -> None:
    before = run(spent(Part.IDLE, "python", 5 * MS, site=Site("/a/src/train.py", 10, "main")))
    after = run(spent(Part.IDLE, "python", 8 * MS, site=Site("/b/src/train.py", 14, "main")))
    (change,) = changes(before, after)
    assert (change.ns, change.change) == (3 * MS, ChangeKind.LONGER)
    assert change.site == Site("/b/src/train.py", 14, "main")


def test_the_shapes_and_the_line_with_most_of_a_difference_are_named_with_it() -> None:
    common: dict[str, Any] = {"part": Part.COMPUTE, "kind": "copy", "op": "aten::copy_"}
    same = spent(**common, ns=2 * MS, shapes="(4,)"), mm(50)
    more = spent(**common, ns=6 * MS, shapes="(8,)", site=LINE, calls=48)
    (change,) = changes(run(*same), run(*same, more))
    assert (change.what, change.shapes, change.site) == ("aten::copy_", "(8,)", LINE)
    assert (change.change, change.before_calls, change.after_calls) == (ChangeKind.MORE_CALLS, 1, 49)


def test_a_cause_that_only_another_version_knows_is_told_by_its_name() -> None:
    before, after = (run(spent(Part.IDLE, "solar_flare", ns)) for ns in (MS, 2 * MS))
    (only,) = parts([before], [after], MS, 2 * MS)
    assert (only.what, only.ns) == ("GPU idle: solar_flare", MS)


def test_calls_are_per_step() -> None:
    rows = mean_rows([run(spent(**GEMM, ns=10, calls=6), times_ns=(10, 10, 10)), run(spent(**GEMM, ns=20, calls=4))])
    assert [(ns, calls) for _, ns, calls in rows] == [(5, 1.0), (10, 2.0)]


rows = st.lists(
    st.builds(
        spent,
        st.sampled_from(Part).filter(lambda one: one not in (Part.IDLE, Part.HOST)),
        st.sampled_from(["gemm", "conv"]),
        st.integers(1, 10**7),
        st.sampled_from(["", "aten::mm", "aten::add"]),
        st.sampled_from(["", "sgemm", "add"]),
        st.integers(0, 5),
        shapes=st.sampled_from(["", "(4,)"]),
        site=st.sampled_from([None, LINE]),
    ),
    min_size=1,
    max_size=8,
)
runs = st.lists(st.builds(lambda some: run(*some), rows), min_size=1, max_size=3)


@given(runs, runs, st.integers(1, 10**8), st.integers(1, 10**8))
def test_parts_add_up_to_the_difference_and_their_changes_to_each_part(
    before: list[Run], after: list[Run], before_ns: int, after_ns: int
) -> None:
    found = parts(before, after, before_ns, after_ns)
    assert sum(one.ns for one in found) == after_ns - before_ns
    assert sum(one.before_ns for one in found) == before_ns
    for one in found:
        assert one.ns == one.after_ns - one.before_ns
        if one.detail:
            assert sum(change.ns for change in one.detail) == one.ns
            assert all(change.ns == change.after_ns - change.before_ns for change in one.detail)
