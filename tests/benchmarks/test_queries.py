"""The queries of the documentation answer what they say; that they print what stands there, test_docs checks."""

from pathlib import Path

import pandas as pd

import diagnose
from benchmarks import queries
from tests.exporting.synthetic import training


def test_the_ops_that_find_an_empty_queue_are_counted(tmp_path: Path) -> None:
    """Of the two used steps: each matmul finds nothing before it, each pointwise kernel finds the matmul."""
    trace = training().write(tmp_path / "rank0.json")
    diagnose.export(trace, parquet=tmp_path / "tables", tables=["kernels"])
    printed = queries.output(queries.code("queue"), tmp_path)
    rows = [line.replace("│", " ").split() for line in printed.splitlines() if "aten::" in line]
    assert rows == [["aten::linear", "2", "2", "0.1"], ["aten::relu", "0", "2", "0.0"]]


def test_the_output_on_a_public_trace_is_a_real_one(corpus: Path) -> None:
    shown = [text for text in queries.texts(corpus) if text.block == "query-queue"]
    assert [one.current for one in shown] == [True]


def test_the_rank_with_the_least_time_in_collectives_is_the_one_that_computes_most(tmp_path: Path) -> None:
    _, recording = queries.SAMPLES["ranks"]
    diagnose.export(recording, parquet=tmp_path / "tables", tables=["collectives", "ops"])
    calls = pd.read_parquet(tmp_path / "tables" / "collectives").query("used")
    waiting = calls.groupby("rank")["dur_ns"].sum()
    assert waiting.idxmin() == 1  # As the sample was made.
