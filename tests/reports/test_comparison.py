"""A comparison in words and as a page: the same on both, short, and with nothing of a trace as markup."""

import re

import jsonschema
import msgspec
import pytest

from diagnose import docs
from diagnose.comparing.compare import compare
from diagnose.contracts.baseline import Baseline, GroupTime, RankStep
from diagnose.contracts.comparison import Comparison
from diagnose.facts.core.steps import Measure
from diagnose.facts.run.time_attribution import Part
from diagnose.reports import comparison, markdown, terminal
from diagnose.reports.html import comparison_page
from diagnose.trace.frames import Site
from tests.reports.html.test_page import HOSTILE, Elements
from tests.runs import LINE, MS, finding, run, side, spent

STEPS = 30


def casts(count: int, site: Site = LINE, op: str = "aten::copy_", torch: str = "2.10") -> Baseline:
    """Steps of 100 ms, and of 1 ms more for each cast in them."""
    rows = [spent(Part.COMPUTE, "gemm", 100 * MS, "aten::mm", calls=90 * STEPS)]
    if count:
        rows.append(spent(Part.COMPUTE, "copy", count * MS, op, "copy_kernel", count * STEPS, site=site))
    times = ((100 + count) * MS,) * STEPS
    found = (finding("Casts in every step", count * MS, site),) if count > 10 else ()
    one = run(*rows, times_ns=times, unprofiled_ns=times, findings=found, looked=("Casts in every step",))
    return side(msgspec.structs.replace(one, settings={"version torch": torch}))


SLOWER = compare(casts(2), casts(50, torch="2.11"))
SAME = compare(*[side(*casts(2).runs * 3)] * 2)


def text_of(found: Comparison) -> str:
    """On a terminal, as one line: where lines break does not matter."""
    return " ".join(terminal.compared(found, 120, details=True).split())


def rows_of(found: Comparison) -> dict[str, tuple[str, ...]]:
    return {row.label: row.cells for section in comparison.sections(found) for row in section.rows}


def test_the_first_lines_say_how_much_slower_how_sure_and_where() -> None:
    text = text_of(SLOWER)
    assert text.startswith(
        "47 % slower (95 % interval 46 to 48 %): 102 -> 150 ms/step Settings (1): version torch 2.10 -> "
    )
    assert "2.11 +48.0 ms: aten::copy_ at src/train.py:88 (main): more calls, 2 -> 50 per step (" in text
    assert "Parts that are new, gone or doubled are more than noise between runs" in text


def test_tables_say_which_parts_add_up_to_the_difference() -> None:
    rows = rows_of(SLOWER)
    assert rows["compute: copy kernels"] == ("2.00 ms", "50.0 ms", "+48.0 ms")
    assert rows["everything else"] == ("100 ms", "100 ms", "0")
    assert rows["step"] == ("102 ms", "150 ms", "+48.0 ms")
    assert rows["aten::copy_"] == ("+48.0 ms", "compute: copy kernels: more calls, 2 -> 50 per step")


def test_what_recording_adds_has_no_row_of_its_own() -> None:
    slow = side(run(spent(Part.COMPUTE, "gemm", 9 * MS), times_ns=(9 * MS,) * STEPS, unprofiled_ns=(6 * MS,) * STEPS))
    fast = side(run(spent(Part.COMPUTE, "gemm", 5 * MS), times_ns=(5 * MS,) * STEPS, unprofiled_ns=(5 * MS,) * STEPS))
    assert comparison.shown_parts(compare(slow, fast)) == [
        ("compute: gemm kernels", -4 * MS),
        ("everything else", 3 * MS),
    ]


def test_findings_and_settings_that_differ_are_listed() -> None:
    assert dict(comparison.lists(SLOWER)) == {
        "New findings": [("Casts in every step (XX01):", "50 ms per step (45 ms to 55 ms), at src/train.py:88 (main)")],
        "Changed settings": [("version torch:", "2.10 -> 2.11.")],
    }


def test_changes_within_a_step_that_is_not_shown_to_differ_may_be_noise() -> None:
    on_cpu = [msgspec.structs.replace(casts(count).runs[0], measure=Measure.HOST) for count in (2, 3)]
    found = compare(*map(side, on_cpu))
    assert found.verdict == "cannot_tell"
    notes = [
        {section.title: section.note for section in comparison.sections(one)}["What changed"] for one in (found, SLOWER)
    ]
    assert notes == ["The step time may not have changed, so these may be noise.", ""]
    # Where there is no difference no cause is told.
    assert [*comparison.causes(SAME), *comparison.lists(SAME)] == []
    assert text_of(SAME).startswith("No difference larger than ")


def test_what_got_faster_is_told_with_what_is_gone() -> None:
    found = compare(casts(60), casts(0))
    assert list(comparison.causes(found)) == [
        "-60.0 ms: aten::copy_ at src/train.py:88 (main): gone, 60 calls per step before (compute: copy kernels)"
    ]
    assert [title for title, _ in comparison.lists(found)] == ["Fixed findings"]


def test_what_cannot_be_told_is_said_without_an_interval() -> None:
    few = side(run(spent(Part.COMPUTE, "gemm", 5 * MS)))
    assert text_of(compare(few, few)).startswith(
        "Cannot tell: +0.0 %, too few steps for an interval: 5.00 -> 5.00 ms/step"
    )


def test_different_amounts_of_work_are_said_first_and_compared_by_the_sample() -> None:
    times = (100 * MS,) * STEPS
    small, large = (side(run(times_ns=times, samples_per_step=count)) for count in (32, 64))
    found = compare(small, large)
    assert terminal.compared(found, 100).splitlines()[1] == "Samples per step and rank differ: 32 before, 64 after."
    rows = rows_of(found)
    assert rows["time per sample"] == ("3.12 ms", "1.56 ms")


def test_groups_and_ranks_are_told_where_they_have_changed() -> None:
    def job(wait_ns: int, computing_ns: int) -> Baseline:
        group = GroupTime(label="all-reduce (all ranks)", calls=1, wait_ns=wait_ns, transfer_ns=5)
        rank = RankStep(rank=1, step_ns=None, computing_ns=computing_ns, waiting_ns=None)
        return side(run(times_ns=(100 * MS,) * STEPS, groups=(group,), ranks=(rank,)))

    rows = rows_of(compare(job(MS, MS), job(9 * MS, 8 * MS)))
    assert rows["all-reduce (all ranks): waiting"] == ("1.00 ms", "9.00 ms", "+8.00 ms")
    assert rows["rank 1"] == ("1.00 ms", "8.00 ms", "+7.00 ms")
    assert "all-reduce (all ranks): transfer" not in rows


def test_reports_say_the_same() -> None:
    told = [comparison.headline(SLOWER), *comparison.causes(SLOWER), SLOWER.why]
    told += [row.label for section in comparison.sections(SLOWER) for row in section.rows]
    told += [first for _, items in comparison.lists(SLOWER) for first, _ in items]
    page, pasted = comparison_page.render(SLOWER, None, None), markdown.compared(SLOWER, details=True)
    for text in told:
        assert text.replace("&", "&amp;").replace(">", "&gt;") in page, text
        assert markdown.escaped(text) in pasted, text


@pytest.mark.parametrize("found", [SLOWER, SAME])
def test_the_json_follows_its_schema(found: Comparison) -> None:
    schema = msgspec.json.decode(docs.schema_file("comparison").read_bytes())
    jsonschema.validate(msgspec.json.decode(found.to_json()), schema)
    assert msgspec.json.decode(found.to_json(), type=Comparison) == found


def test_a_baseline_follows_its_schema_and_comes_back_as_it_was() -> None:
    kept = casts(50)
    schema = msgspec.json.decode(docs.schema_file("baseline").read_bytes())
    jsonschema.validate(msgspec.json.decode(kept.to_json()), schema)
    assert msgspec.json.decode(kept.to_json(), type=Baseline) == kept


def test_names_of_a_trace_are_text_everywhere() -> None:
    site = Site(HOSTILE, 88, HOSTILE)
    found = compare(casts(0, site, HOSTILE), casts(60, site, HOSTILE, torch=HOSTILE))
    elements = Elements(comparison_page.render(found, None, None))
    assert not elements.named("img")
    assert [one.get("type") for one in elements.named("script")] == ["text/plain", "text/plain", None]
    for details in (False, True):
        assert not re.search(r"(?<!\\)[<>]", markdown.compared(found, details).replace("-> ", ""))
        assert "https://" not in markdown.compared(found, details)


def test_the_report_keeps_to_the_width() -> None:
    site = Site("a/very/long/path/" * 9 + "train.py", 88, "a_function_with_a_long_name" * 4)
    found = compare(casts(0, site, "an_op_" * 30), casts(60, site, "an_op_" * 30))
    for width, details in ((60, False), (80, False), (80, True), (100, True)):
        assert max(map(len, terminal.compared(found, width, details=details).splitlines())) <= width


def test_without_details_it_has_15_lines_at_most() -> None:
    many = tuple(finding(f"Finding number {k}", k * MS, LINE) for k in range(30))
    rows = [spent(Part.COMPUTE, "copy", 9 * MS, f"op_{k}", site=LINE) for k in range(9)]
    times = ((100 * MS,) * STEPS, (181 * MS,) * STEPS)
    old = run(times_ns=times[0], findings=many[:10], samples_per_step=1, looked=[one.title for one in many])
    new = msgspec.structs.replace(run(*rows, times_ns=times[1], findings=many[20:], samples_per_step=9), format="nsys")
    settings = {f"env {k}": "x" * 99 for k in range(30)}
    found = compare(side(old), side(msgspec.structs.replace(new, settings=settings)))
    for width in (80, 100):
        text = terminal.compared(found, width)
        assert len(text.splitlines()) <= 15
        assert "New (10): Finding number 20 (XX01)" in text
        assert "Next: diagnose compare ... --details" in text
