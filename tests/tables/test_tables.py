"""Tables of a training whose every time is known, and of recordings that lack what a table is made of."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from diagnose.facts.core.base import Facts, Missing
from diagnose.source import recording
from diagnose.tables import frame, making, schema
from diagnose.tables.schema import Column, Table
from diagnose.trace.frames import Site
from tests.drawing import Drawing
from tests.tables.synthetic import training

NAMES = schema.named(())
TABLES = {table.name: table for table in schema.TABLES}
ON_CPU = Path(__file__).parents[2] / "sample_traces" / "planted" / "mixed" / "three_faults_on_the_cpu" / "medium"


def tables(facts: Facts) -> dict[str, pd.DataFrame]:
    return {table.name: made for table, made in making.made(facts, NAMES) if not isinstance(made, Missing)}


def missing(facts: Facts) -> dict[str, str]:
    return {table.name: made.what for table, made in making.made(facts, NAMES) if isinstance(made, Missing)}


@pytest.fixture(scope="module")
def made() -> dict[str, pd.DataFrame]:
    return tables(training().facts())


def rows(table: pd.DataFrame, *columns: str) -> list[tuple[object, ...]]:
    """Values of some columns by row; None where they are missing."""
    some = table[list(columns)].astype(object)
    return [tuple(row) for row in some.where(some.notna(), None).itertuples(index=False)]


def test_a_kernel_has_its_op_its_launch_and_its_line(made: dict[str, pd.DataFrame]) -> None:
    kernels = made["kernels"]
    assert list(kernels.columns) == list(schema.KERNELS.columns)
    matmul, pointwise = rows(kernels, "name", "kind", "start_ns", "dur_ns", "op", "outer_op", "tensor_cores")[2:4]
    assert matmul == ("ampere_sgemm_128x64", "gemm", 110_000, 50_000, "aten::mm", "aten::linear", False)
    assert pointwise[:5] == ("vectorized_elementwise_kernel", "elementwise", 160_000, 5_000, "aten::relu")
    assert rows(kernels, "file", "line", "function")[2] == ("train.py", 3, "step")
    assert rows(kernels, "grid_x", "block_x", "registers")[2:4] == [(4, 256, None), (None, None, None)]


def test_a_kernel_says_what_it_waited_for(made: dict[str, pd.DataFrame]) -> None:
    """The matmul's call finds nothing before it, the other's finds the matmul."""
    columns = ("launch_start_ns", "launch_dur_ns", "queue_delay_ns", "queue_depth")
    assert rows(made["kernels"], *columns)[2:4] == [(103_000, 1_000, 7_000, 0), (121_000, 1_000, 39_000, 1)]


def test_ids_lead_from_one_table_to_another(made: dict[str, pd.DataFrame]) -> None:
    ops, spans = made["ops"].set_index("id"), made["spans"].set_index("id")
    for id_, name, op_id, op, launch in rows(made["kernels"], "id", "name", "op_id", "op", "launch_id"):
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


def test_a_rank_in_brief_adds_up(made: dict[str, pd.DataFrame]) -> None:
    (row,) = made["ranks"].to_dict("records")
    assert (row["recorded_steps"], row["used_steps"], row["step_ns"]) == (3, 2, 100_000)
    assert (row["compute_ns"], row["exposed_copy_ns"], row["idle_ns"]) == (55_000, 8_000, 37_000)
    assert made["kernels"].query("used")["dur_ns"].sum() / row["used_steps"] == 55_000
    assert made["idle_gaps"]["dur_ns"].sum() / row["used_steps"] == row["idle_ns"]
    assert rows(made["ranks"], "unprofiled_step_ns", "mfu", "peak_reserved_bytes") == [(None, None, None)]


def test_an_op_has_its_parent_and_its_own_time(made: dict[str, pd.DataFrame]) -> None:
    outer, inner = rows(made["ops"], "name", "id", "parent_id", "dur_ns", "self_ns", "shapes")[:2]
    assert outer == ("aten::linear", outer[1], None, 8_000, 2_000, "[[8, 16]]")
    assert inner == ("aten::mm", inner[1], outer[1], 6_000, 6_000, None)


def test_a_copy_has_its_size_and_kind(made: dict[str, pd.DataFrame]) -> None:
    columns = ("bytes", "direction", "host_memory", "op", "queue_depth")
    assert rows(made["copies"], *columns)[1] == (1024, "HtoD", "pageable", "aten::copy_", 0)


def test_gaps_have_causes_and_lines(made: dict[str, pd.DataFrame]) -> None:
    found = rows(made["idle_gaps"], "start_ns", "dur_ns", "step", "cause", "function")
    assert found[:2] == [(80_000, 30_000, 1, "python", "step"), (165_000, 7_000, 1, "python", "step")]


def test_spending_adds_up_to_the_mean_step(made: dict[str, pd.DataFrame]) -> None:
    assert made["spending"]["ns"].sum() == made["ranks"]["step_ns"].iloc[0]
    idle = made["spending"].query("part == 'idle'")["ns"].sum()
    assert idle == made["ranks"]["idle_ns"].iloc[0]


def test_lines_are_of_the_users_own_code(made: dict[str, pd.DataFrame]) -> None:
    columns = ("start_ns", "dur_ns", "file", "line", "function")
    assert rows(made["lines"], *columns)[1] == (100_000, 99_000, "train.py", 3, "step")


def test_tracks_tell_threads_from_streams(made: dict[str, pd.DataFrame]) -> None:
    assert rows(made["tracks"], "track", "device", "stream") == [(0, None, None), (1, 0, 7)]


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
    assert rows(tables(host_only)["ranks"], "measure", "used_steps", "idle_ns") == [("window", 0, None)]


def test_a_training_without_a_device_has_empty_tables_of_it() -> None:
    """`diagnose profile` timed it on the host alone."""
    found = making.made(Facts(recording.read(recording.find([ON_CPU]).ranks[0])), NAMES)
    made = {table.name: one for table, one in found}
    for name in ("kernels", "copies", "idle_gaps"):
        assert isinstance(made[name], pd.DataFrame)
        assert (len(made[name]), list(made[name].columns)) == (0, list(TABLES[name].columns))


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


def test_a_column_that_the_schema_does_not_name_is_refused() -> None:
    table = Table("t", "A row.", {"a": Column("int32", "", "a")})
    with pytest.raises(ValueError, match="t: \\['b'\\]"):
        frame.frame(table, {"a": [1], "b": [2]})
    with pytest.raises(ValueError, match="t: \\['a'\\]"):
        frame.frame(table, {})


def test_texts_are_kept_once_and_empty_ones_are_missing() -> None:
    table = Table("t", "A row.", {"a": Column("text", "", "a")})
    made = frame.frame(table, {"a": pd.Categorical(["x", "", "x"], categories=["", "unused", "x"])})["a"]
    assert list(made.cat.categories) == ["x"]
    assert made.isna().tolist() == [False, True, False]


def test_places_of_the_same_file_share_it() -> None:
    found = frame.places([Site("a.py", 3, "f"), None, Site("a.py", 9, "g")])
    assert list(found["file"].categories) == ["a.py"]
    assert found["line"].tolist() == [3, -1, 9]


def test_there_are_no_other_tables_than_those_that_are_named() -> None:
    assert schema.named(["steps", "ranks"]) == ("steps", "ranks")
    with pytest.raises(ValueError, match=r"There is no table step\. There are: ranks, steps, "):
        schema.named(["step"])
    assert [table.name for table, _ in making.made(training().facts(), ["steps", "ranks"])] == ["ranks", "steps"]


def test_units_stand_in_names() -> None:
    units = {"ns": "_ns", "bytes": "_bytes"}
    for table in schema.TABLES:
        for name, column in table.columns.items():
            if column.unit in units:
                assert f"_{name}".endswith(units[column.unit]), (table.name, name)
