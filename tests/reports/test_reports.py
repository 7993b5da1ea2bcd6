"""Reports: golden text of one run, and every reporter on the emptiest, the largest and the most hostile input."""

import re
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Facts
from diagnose.reports import heading, markdown, terminal
from diagnose.reports.html import step_figures
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Manifest
from tests.diagnoses import of_ranks
from tests.drawing import Drawing
from tests.reports.drawn import is_golden


def of(drawing: Drawing) -> Diagnosis:
    return of_ranks(pipeline.present(Facts(drawing.rank()), []))


def training() -> Drawing:
    """Three steps with a loader wait, a pageable copy, a sync, hidden and exposed communication, and stacks."""
    device = {"id": 0, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85_000_000_000, "numSms": 132}
    draw = Drawing(deviceProperties=[device], cuda_runtime_version=12040)
    for number in range(3):
        at = number * 10_000
        draw.step(number, at, at + 10_000).frame("/home/me/train.py(12): train", at, at + 10_000)
        draw.span(
            "user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 100, at + 4_000
        )
        draw.op("aten::to", at + 4_000, at + 4_500)
        draw.copy("HtoD (Pageable -> Device)", (at + 4_050, at + 4_300), (at + 4_200, at + 4_290), 1_000_000)
        draw.op("aten::mm", at + 4_600, at + 4_700)
        draw.launch("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_x", (at + 4_650, at + 4_660), (at + 4_670, at + 8_000))
        draw.launch(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", (at + 4_680, at + 4_690), (at + 7_000, at + 9_000), stream=20
        )
        draw.op("aten::item", at + 8_500, at + 9_100).call("cudaStreamSynchronize", at + 8_510, at + 9_010)
        draw.span("user_annotation", "Optimizer.step#SGD.step", at + 9_200, at + 9_300)
    return draw


def hostile() -> Drawing:
    name = "<script>alert(1)</script>[bold red]|`*_@everyone https://evil.example \x1b[31m\u202egnp\x07" + "x" * 10_000
    draw = Drawing().step(0, 0, 10).launch(name, (1, 2), (3, 9)).step(1, 10, 30).launch(name, (11, 12), (15, 29))
    return draw.op(name, 10, 14).call("cudaStreamSynchronize", 13, 14).frame(f"/home/me/{name}.py(3): f", 10, 30)


def many() -> Drawing:
    draw = Drawing()
    for k in range(1000):
        draw.launch(f"kernel_{k}", (10 * k, 10 * k + 1), (10 * k + 2, 10 * k + 9), stream=k % 50).op(
            f"op_{k}", 10 * k, 10 * k + 3
        )
    return draw


EVERY = {
    "training": training,
    "hostile": hostile,
    "many": many,
    "cpu_only": lambda: Drawing().step(0, 0, 9).op("aten::mm", 1, 5).step(1, 9, 30).op("aten::mm", 10, 15),
    "inconclusive": lambda: Drawing().span("unheard_of", "x", 0, 5),
    "device_only": lambda: Drawing().work("k", (0, 5)).work("k", (9, 12)),
}


@pytest.mark.parametrize(("render", "suffix"), [(terminal.render, "txt"), (markdown.render, "md")])
def test_a_report_reads_as_it_should(render: Callable[..., str], suffix: str, request: pytest.FixtureRequest) -> None:
    """The golden text was read line by line against the drawing. Rewrite it with --update-golden, and read it again."""
    found = of(training())
    known = replace(found, provenance=replace(found.provenance, sources=()))
    is_golden(render(known, details=True), f"training.{suffix}", request)


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("details", [False, True])
def test_the_terminal_report_keeps_to_the_width(name: str, width: int, details: bool) -> None:
    text = terminal.render(of(EVERY[name]()), width, details=details)
    assert text.strip()
    assert max(map(len, text.splitlines())) <= min(width, terminal.MOST_WIDTH)
    assert details or len(text.splitlines()) <= terminal.MOST_LINES


def test_nothing_in_a_name_acts_on_the_terminal() -> None:
    text = terminal.render(of(hostile()), 100, details=True)
    assert all(character.isprintable() or character == "\n" for character in text)
    assert "<script>alert(1)</script>[bold red]" in text


def test_colour_only_when_asked() -> None:
    assert ["\x1b[" in terminal.render(of(training()), color=color) for color in (False, True)] == [False, True]


def test_markdown_shows_names_as_text() -> None:
    text = markdown.render(of(hostile()), details=True)
    assert not re.search(r"(?<!\\)<script|https://|@everyone", text)


@pytest.mark.parametrize("name", EVERY)
def test_markdown_tables_have_as_many_cells_as_heads(name: str) -> None:
    heads = 0
    for line in markdown.render(of(EVERY[name]()), details=True).splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line))
        if not line.startswith("|"):
            heads = 0
        elif heads:
            assert cells == heads, line
        else:
            heads = cells


@pytest.mark.parametrize("name", EVERY)
def test_json_of_anything_round_trips(name: str) -> None:
    found = of(EVERY[name]())
    assert Diagnosis.from_json(found.to_json()) == found


def test_reports_stay_small_whatever_the_trace() -> None:
    found = of(many())
    assert len(found.kernels or ()) == 200
    assert terminal.render(found, details=True).count("\n") < 120


@pytest.mark.parametrize(
    ("command", "torch", "said"),
    [
        (("/usr/bin/python3.11", "a.py", "--name", "a b"), "2.13.0", "a.py --name 'a b' · CPU only · torch 2.13.0"),
        (("torchrun", "train.py"), None, "torchrun train.py · CPU only"),
        (("python", "x" * 100), None, "x" * 59 + "… · CPU only"),
        ((), None, "CPU only"),
    ],
)
def test_what_ran_is_said_where_it_is_known(command: tuple[str, ...], torch: str | None, said: str) -> None:
    found = of(Drawing().step(0, 0, 10).op("aten::add", 1, 2))
    manifest = Manifest(command=command, versions={"torch": torch} if torch else {})
    known = replace(found, provenance=replace(found.provenance, manifest=manifest))
    assert heading.subject(known) == f"{said} · 1 step"


def test_all_reports_say_the_same_of_a_hole_in_a_graph() -> None:
    """200 of 400 us of each step lie between two kernels of one replay."""
    facts = facts_of(
        """
        4 steps of 0.4
        cpu  aten::mm 0-0.01
        gpu  pointwise 0.03-0.05 @0.015 graph | pointwise 0.25-0.38 @0.015 graph
        """
    )
    found = of_ranks(pipeline.present(facts, []))
    (part,) = [one for one in step_figures.parts(found)[0] if one.label == "work that was not recorded"]
    assert part.ns == 200_000
    assert re.search(r"work that was not recorded\W+200 us\W+50\.0 %", terminal.render(found, details=True))
    assert re.search(r"work that was not recorded\W+200 us\W+50\.0 %", markdown.render(found, details=True))
    assert [(one.label, one.ns) for one in heading.bar(found)][-1] == ("work that was not recorded", 200_000)
    assert Diagnosis.from_json(found.to_json()).breakdown == found.breakdown
    assert found.breakdown.work_not_recorded_ns == 200_000
    assert sum(one.ns for one in found.idle or ()) == found.breakdown.idle_ns == 50_000
    assert "work_not_recorded" in {found.timeline.kinds[k] for k in found.timeline.tables[0].kind.values.tolist()}


def test_inference_is_not_called_a_training() -> None:
    draw = Drawing()
    for at in (0, 1000, 2000, 3000):
        draw.step(at // 1000, at, at + 1000).op("aten::mm", at + 10, at + 20)
        draw.launch("ampere_sgemm_128x64_tn", (at + 12, at + 14), (at + 16, at + 990))
    text = terminal.render(of(draw), details=True)
    assert "inference" in text.splitlines()[0].split(" · ")
    assert text.splitlines()[2].startswith("  1.00 ms/iteration · GPU-bound: kernels run 97 % of the time")
    assert "What the launching threads did" in text
    trained = terminal.render(of(draw.op("Optimizer.step#SGD.step", 3500, 3600)))
    assert "inference" not in trained
    assert trained.splitlines()[2].startswith("  1.00 ms/step · ")
