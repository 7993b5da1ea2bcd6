"""Tables of a training whose every time is known, and of recordings that lack what a table is made of."""

from pathlib import Path

import pandas as pd
import pytest

from diagnose.exporting import tables as exported
from diagnose.facts.core.base import Facts, Missing
from diagnose.source import recording
from tests.drawing import MAIN, Drawing
from tests.exporting.synthetic import training

ON_CPU = Path(__file__).parents[2] / "sample_traces" / "planted" / "mixed" / "three_faults_on_the_cpu" / "medium"


def tables(facts: Facts) -> dict[str, pd.DataFrame]:
    return {name: made for name, made in exported.made(facts, exported.TABLES) if not isinstance(made, Missing)}


def missing(facts: Facts) -> dict[str, str]:
    return {name: made.what for name, made in exported.made(facts, exported.TABLES) if isinstance(made, Missing)}


@pytest.fixture(scope="module")
def made() -> dict[str, pd.DataFrame]:
    return tables(training().facts())


def rows(table: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """Values of some columns by row; None where they are missing."""
    some = table[list(columns)].astype(object)
    return [tuple(row) for row in some.where(some.notna(), None).itertuples(index=False)]


def test_a_kernel_has_its_op_its_launch_and_its_line(made: dict[str, pd.DataFrame]) -> None:
    kernels = made["kernels"]
    matmul, pointwise = rows(kernels, "name", "kind", "start_ns", "dur_ns", "op", "outer_op")[2:4]
    assert matmul == ("ampere_sgemm_128x64", "gemm", 110_000, 50_000, "aten::mm", "aten::linear")
    assert pointwise[:5] == ("vectorized_elementwise_kernel", "elementwise", 160_000, 5_000, "aten::relu")
    assert rows(kernels, "file", "line", "function")[2] == ("train.py", 3, "step")
    assert rows(kernels, "grid_x", "block_x", "registers")[2:4] == [(4, 256, None), (None, None, None)]


def test_a_kernel_says_what_it_waited_for(made: dict[str, pd.DataFrame]) -> None:
    """The matmul's call finds nothing before it, the other's finds the matmul."""
    assert rows(made["kernels"], "queue_delay_ns", "queue_depth")[2:4] == [(7_000, 0), (39_000, 1)]


def test_ids_lead_from_one_table_to_another(made: dict[str, pd.DataFrame]) -> None:
    ops, spans, kernels = made["ops"], made["spans"], made["kernels"].reset_index()
    for id_, name, op_id, op, launch in rows(kernels, "id", "name", "op_id", "op", "launch_id"):
        assert (spans["name"][id_], ops["name"][op_id], spans["kind"][launch]) == (name, op, "runtime")
    gap = made["idle_gaps"].iloc[0]
    assert spans["start_ns"][gap["next_id"]] == gap["start_ns"] + gap["dur_ns"]


def test_the_first_step_is_not_used_and_steps_end_with_their_last_work(made: dict[str, pd.DataFrame]) -> None:
    columns = ("step", "host_start_ns", "host_end_ns", "used", "start_ns", "end_ns")
    assert rows(made["steps"], *columns) == [
        (0, 0, 100_000, False, None, None),
        (1, 100_000, 200_000, True, 80_000, 180_000),
        (2, 200_000, 300_000, True, 180_000, 280_000),
    ]
    assert rows(made["kernels"], "step", "used") == [(0, False)] * 2 + [(1, True)] * 2 + [(2, True)] * 2


def test_sums_over_used_steps_are_times_of_the_mean_step(made: dict[str, pd.DataFrame]) -> None:
    (row,) = made["ranks"].to_dict("records")
    assert (row["file"], row["used_steps"], row["step_ns"]) == ("trace.json", 2, 100_000)
    assert made["kernels"].query("used")["dur_ns"].sum() / row["used_steps"] == 55_000
    assert made["idle_gaps"]["dur_ns"].sum() / row["used_steps"] == 37_000


def test_an_op_has_its_parent_and_its_own_time(made: dict[str, pd.DataFrame]) -> None:
    outer, inner = rows(made["ops"].reset_index(), "name", "id", "parent_id", "dur_ns", "self_ns", "shapes")[:2]
    assert outer == ("aten::linear", outer[1], None, 8_000, 2_000, "[[8, 16]]")
    assert inner == ("aten::mm", inner[1], outer[1], 6_000, 6_000, None)


def test_a_copy_has_its_size_and_kind(made: dict[str, pd.DataFrame]) -> None:
    columns = ("bytes", "direction", "host_memory", "op", "queue_depth")
    assert rows(made["copies"], *columns)[1] == (1024, "HtoD", "pageable", "aten::copy_", 0)


def test_gaps_have_causes_and_lines_which_are_of_the_users_own_code(made: dict[str, pd.DataFrame]) -> None:
    found = rows(made["idle_gaps"], "start_ns", "dur_ns", "cause", "function")
    assert found[:2] == [(80_000, 30_000, "python", "step"), (165_000, 7_000, "python", "step")]
    columns = ("start_ns", "dur_ns", "file", "line", "function")
    assert rows(made["lines"], *columns)[1] == (100_000, 99_000, "train.py", 3, "step")


def test_tracks_tell_threads_from_streams(made: dict[str, pd.DataFrame]) -> None:
    assert rows(made["tracks"].reset_index(), "track", "device", "stream") == [(0, None, None), (1, 0, 7)]


def test_what_was_not_recorded_is_no_empty_table(made: dict[str, pd.DataFrame]) -> None:
    assert len(made["collectives"]) == 0
    assert missing(training().facts()) == {"syncs": "synchronisation events", "memory": "memory events"}
    host_only = Drawing().op("aten::mm", 0, 9).facts()
    assert missing(host_only) == {
        "steps": "marked steps",
        "kernels": "device work",
        "copies": "device work",
        "collectives": "device work",
        "lines": "call stacks",
        "idle_gaps": "device work",
        "syncs": "synchronisation events",
        "memory": "memory events",
    }
    assert rows(tables(host_only)["ops"], "name", "step", "used") == [("aten::mm", None, True)]
    assert rows(tables(host_only)["ranks"], "used_steps", "step_ns") == [(0, 9_000)]


def test_a_training_without_a_device_is_not_told_to_record_one() -> None:
    """`diagnose profile` timed it on the host alone."""
    found = dict(exported.made(Facts(recording.read(recording.find([ON_CPU]).ranks[0])), exported.TABLES))
    for name in ("kernels", "copies", "idle_gaps"):
        assert str(found[name]) == "device work: The training uses no GPU."


def test_collectives_have_what_was_recorded_of_them() -> None:
    draw = Drawing()
    told = {"Collective name": "allreduce", "In msg nelems": 100, "Out msg nelems": 100, "dtype": "Float"}
    told |= {"Process Group Name": "3", "Process Group Description": "mesh_dp", "Group size": 2}
    for at in (0, 100):
        draw.op("aten::mm", at, at + 2).launch("k", (at, at + 1), (at + 1, at + 9))
        draw.launch("ncclDevKernel_AllReduce", (at + 10, at + 11), (at + 20, at + 50), **told)
    columns = ("operation", "bytes", "group", "group_description", "group_size", "dtype", "on_host", "peer", "dur_ns")
    found = rows(tables(draw.facts())["collectives"], *columns)
    assert found[0] == ("allreduce", 400, "3", "mesh_dp", 2, "Float", False, None, 30_000)


def test_unknown_and_none_are_null() -> None:
    found = tables(Drawing().op("", 0, 9).launch("k", (1, 2), (3, 4)).facts())
    assert rows(found["ops"], "name", "shapes", "parent_id", "file", "line") == [(None,) * 5]
    assert rows(found["kernels"], "step", "grid_x", "registers", "graph_id") == [(None,) * 4]


def test_work_of_a_device_alone_has_no_launch() -> None:
    draw = Drawing().work("ampere_sgemm_128x64", (0, 9))
    draw.work("Stream Sync", (9, 12), cat="cuda_sync", cuda_sync_kind="Stream Sync")
    found = tables(draw.facts())
    columns = ("name", "kind", "dur_ns", "op", "launch_id", "queue_delay_ns", "queue_depth")
    assert rows(found["kernels"], *columns) == [("ampere_sgemm_128x64", "gemm", 9_000, *(None,) * 4)]
    assert rows(found["syncs"], "name", "sync_kind", "dur_ns", "stream") == [("Stream Sync", "stream", 3_000, 7)]


def test_a_freed_byte_is_no_unknown_size() -> None:
    draw = Drawing().op("aten::mm", 0, 9)
    told = {"Device Type": 0, "Device Id": -1, "Addr": 1, "Bytes": -1, "Total Allocated": 64, "Total Reserved": -1}
    draw.events.append({"ph": "i", "s": "t", "name": "[memory]", "pid": MAIN, "tid": MAIN, "ts": 5, "args": told})
    columns = ("start_ns", "device", "bytes", "allocated_bytes", "reserved_bytes")
    assert rows(tables(draw.facts())["memory"], *columns) == [(5_000, None, -1, 64, None)]


def test_there_are_no_other_tables_than_those_that_are_named() -> None:
    assert exported.named(["steps", "ranks"]) == ("steps", "ranks")
    with pytest.raises(ValueError, match=r"There is no table step\. Choose from: ranks, steps, "):
        exported.named(["step"])
    assert [name for name, _ in exported.made(training().facts(), ["steps", "ranks"])] == ["ranks", "steps"]


def test_every_column_is_documented(made: dict[str, pd.DataFrame]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "queries.md").read_text(encoding="utf-8")
    for name, table in made.items():
        for column in table.reset_index().columns if table.index.name else table.columns:
            assert f"`{column}`" in page, (name, column)
