"""From paths to a Diagnosis: several ranks, one process or many, and the JSON contract."""

import gzip
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest

import diagnose
from diagnose import docs, pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import OutcomeKind
from diagnose.facts.core.steps import Measure
from diagnose.source import processes
from diagnose.source.base import InputError
from tests.diagnoses import of_ranks
from tests.drawing import Drawing


def rank_trace(rank: int, world: int, step_us: float) -> Drawing:
    """Two steps of the given length on the device, of which 10 us are busy."""
    draw = Drawing(distributedInfo={"backend": "nccl", "rank": rank, "world_size": world})
    for number in range(3):
        start = number * step_us
        draw.step(number, start, start + step_us).launch("k", (start + 1, start + 2), (start + 5, start + 15))
    return draw


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder of 4 ranks; rank 2 is the slowest."""
    for rank, step in enumerate((100, 110, 150, 120)):
        rank_trace(rank, 4, step).write(tmp_path / f"worker.{'dcba'[rank]}.json")
    return tmp_path


def test_the_slowest_rank_is_shown_and_all_are_listed(run: Path) -> None:
    found = diagnose.analyze(run)
    assert found.rank == 2
    assert (found.breakdown.step_ns, found.breakdown.busy_ns) == (150_000, 10_000)
    assert [(rank.rank, rank.step_time_ns and rank.step_time_ns.median) for rank in found.ranks] == [
        (0, 100_000),
        (1, 110_000),
        (2, 150_000),
        (3, 120_000),
    ]
    assert found.provenance.world_size == 4


@pytest.mark.slow
def test_processes_give_the_same_as_one_process(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = diagnose.analyze(run)
    monkeypatch.setattr(processes, "POOL_BYTES", 0)
    assert diagnose.analyze(run, jobs=2) == alone


def test_progress_counts_files(run: Path) -> None:
    seen: list[tuple[int, int]] = []
    pipeline.diagnose([run], progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_an_unreadable_file_in_a_folder_is_noted_and_the_rest_used(run: Path) -> None:
    (run / "worker.e.json").write_text('{"nodes": []}')
    found = diagnose.analyze(run)
    assert len(found.ranks) == 4
    assert any("worker.e.json" in note.what and "no traceEvents" in note.what for note in found.integrity)


def test_an_unreadable_file_that_was_named_is_an_error(run: Path) -> None:
    bad = run / "worker.e.json"
    bad.write_text('{"nodes": []}')
    with pytest.raises(InputError, match="no traceEvents"):
        diagnose.analyze(run / "worker.a.json", bad)


def test_notes_that_ranks_share_are_given_once(run: Path) -> None:
    notes = [note.what for note in diagnose.analyze(run).integrity]
    assert notes.count("All ranks: Call stacks were not recorded.") == 1


def test_steps_that_do_not_exist_are_an_error_that_names_those_that_do(run: Path) -> None:
    with pytest.raises(InputError, match="usable steps of this recording are 1-2"):
        diagnose.analyze(run / "worker.a.json", steps=(7, 9))


def test_what_is_missing_is_listed_and_its_sections_are_none() -> None:
    drawing = Drawing().step(0, 0, 10).op("aten::mm", 1, 5).step(1, 10, 30).op("aten::mm", 11, 15)
    found = of(drawing)
    assert (found.breakdown, found.idle, found.kernels, found.launches) == (None, None, None, None)
    assert {"device work", "DataLoader fetches", "call stacks"} <= {one.what for one in found.absent}
    assert found.conclusive


def test_a_trace_with_nothing_to_measure_is_inconclusive() -> None:
    found = of(Drawing().span("unheard_of", "x", 0, 5))
    assert not found.conclusive
    assert found.steps is None
    assert [one.what for one in found.absent] == ["device work and ops"]


def test_a_window_counts_no_steps() -> None:
    found = of(Drawing().launch("k", (0, 1), (2, 10)))
    assert (found.steps.measure, found.steps.recorded, found.steps.used, found.steps.numbers) == (
        Measure.WINDOW,
        0,
        0,
        (),
    )


def of(drawing: Drawing) -> Diagnosis:
    from diagnose.facts.core.base import Facts

    return of_ranks(pipeline.present(Facts(drawing.rank()), []))


def test_json_round_trip(run: Path) -> None:
    found = diagnose.analyze(run)
    assert Diagnosis.from_json(found.to_json()) == found


def test_json_follows_the_published_schema(run: Path) -> None:
    schema = json.loads(docs.schema_file("diagnosis").read_text())
    for found in (diagnose.analyze(run), of(Drawing().op("aten::mm", 0, 5)), of(Drawing().span("x", "y", 0, 5))):
        jsonschema.validate(json.loads(found.to_json()), schema)


def test_json_has_the_names_that_other_programs_rely_on(run: Path) -> None:
    found = json.loads(diagnose.analyze(run).to_json())
    assert found["schema_version"] == 1
    assert set(found) >= {
        *("tool_version", "provenance", "steps", "breakdown", "idle", "kernels", "findings", "outcomes", "integrity"),
        "replay",
    }
    assert set(found["provenance"]) >= {"sources", "devices", "world_size", "framework", "manifest"}
    assert set(found["provenance"]["sources"][0]) >= {"path", "format", "rank", "events", "bytes", "recorded"}
    assert set(found["steps"]) >= {"recorded", "used", "step_time_ns", "unprofiled_step_time_ns", "overhead_ratio"}
    assert set(found["steps"]["step_time_ns"]) >= {"median", "min", "max"}
    assert set(found["breakdown"]) >= {
        "busy_ns",
        "idle_ns",
        "compute_ns",
        "exposed_communication_ns",
        "exposed_copy_ns",
    }
    assert set(found["idle"][0]) == {"cause", "ns", "share", "gaps", "site"}
    assert set(found["kernels"][0]) >= {"name", "kind", "calls", "ns", "share", "tensor_cores"}
    assert set(found["integrity"][0]) == {"what", "effect", "severity", "doubts"}
    assert sum(one["ns"] for one in found["idle"]) == found["breakdown"]["idle_ns"]


def test_a_folder_of_eight_real_ranks(analyzed: Callable[[str], Diagnosis]) -> None:
    found = analyzed("kineto/param/dlrm_8_ranks")
    assert [rank.rank for rank in found.ranks] == list(range(8))
    assert found.provenance.world_size == 8
    assert not [note for note in found.integrity if "only rank" in note.what or "ranks given" in note.what]


def test_load_gives_tables_in_the_documented_shape(tmp_path: Path) -> None:
    path = tmp_path / "rank0.trace.json.gz"
    path.write_bytes(gzip.compress(rank_trace(0, 1, 100).text().encode()))
    (rank,) = diagnose.load(path).ranks
    assert len(rank.kernels) == 3
    assert rank.spans.loc[rank.kernels.index, "name"].tolist() == ["k", "k", "k"]


def test_a_recording_of_a_small_training() -> None:
    """Timed without the profiler, recorded without stacks, and again with them."""
    folder = Path(__file__).parent / "data" / "recording"
    found = diagnose.analyze(folder)
    times = json.loads((folder / "manifest.json").read_text())["ranks"][0]
    assert found.steps.unprofiled_step_time_ns == round(statistics.fmean(times["unprofiled"]["wall_ns"])) == 196_765
    assert found.steps.overhead_ratio == pytest.approx(371_681 / 187_470)
    assert found.provenance.sources[0].from_detail == ("shapes", "stacks")
    assert {function.site.function for function in found.functions or () if function.site} >= {
        "train_step",
        "forward",
        "steps",
    }
    outcomes = {outcome.rule: outcome.outcome for outcome in found.outcomes}
    assert outcomes["profiler_distortion"] is OutcomeKind.FOUND
    assert "Profiling slows the CPU: CPU times in findings are as recorded." in {note.what for note in found.integrity}
