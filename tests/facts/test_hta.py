"""HolisticTraceAnalysis (HTA) as a second opinion: what it reads against what we fill it with, and against our facts.

Every difference has a reason, and is bounded by what that reason can do:

- HTA reads times into doubles. At Unix microseconds a double holds only quarters of one, ours are exact.
- HTA moves starts up and ends down to whole microseconds: what runs from s to e becomes the whole microseconds inside,
  so it loses less than 1 us at either end. Nothing else loses time.
- HTA leaves out device work launched in the last step, and, where there are steps, work without a recorded launch.
- Of Python functions that stand when the recording begins we know no line, and say 0; HTA reads the profiler's, of
  some other moment.
"""

import builtins
import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import diagnose
from diagnose.facts.core.base import Missing
from diagnose.trace.model import Rank, Run

TRACES = [
    "kineto/hta/resnet_v100_5_steps.json.gz",
    "kineto/hta/nccl_a100_rank0_of_2.json.gz",
    "kineto/param/resnet.json.gz",
    "kineto/tracelens/mi300_resnet18.json.gz",
    pytest.param("kineto/param/dlrm_8_ranks", marks=pytest.mark.exhaustive),
]
AS_READ = ("s_cat", "s_function", "pid", "tid", "stream", "correlation", "external_id")
LINE = r"\(\d+\): "
ORDER = ["s_cat", "s_function", "stream", "correlation", "external_id", "ts", "dur"]


@dataclass(frozen=True)
class Case:
    """A run, and HTA's analysis of it: `read` by HTA itself, `filled` by us."""

    run: Run
    read: Any
    filled: Any

    def both(self, rank: Rank) -> tuple[pd.DataFrame, pd.DataFrame]:
        return self.read.t.traces[rank.index], self.filled.t.traces[rank.index]


@pytest.fixture(scope="module", params=TRACES)
def case(request: pytest.FixtureRequest, corpus: Path) -> Case:
    """Both analyses, with events in one order: HTA's sort by time keeps no order among equal microseconds."""
    analysis = pytest.importorskip("hta.trace_analysis").TraceAnalysis
    run = diagnose.load(corpus / request.param)
    read = analysis(trace_files={rank.index: rank.provenance.path for rank in run.ranks})
    case = Case(run, read, diagnose.to_hta(run))
    for one in (case.read, case.filled):
        symbols = np.array(one.t.symbol_table.get_sym_table(), dtype=object)
        for index, events in one.t.traces.items():
            text = events.assign(s_cat=symbols[events["cat"]], s_name=symbols[events["name"]])
            text["s_function"] = text["s_name"].str.replace(LINE, "(0): ", regex=True)
            one.t.traces[index] = text.sort_values(ORDER, kind="stable")
    return case


def span_ids(events: pd.DataFrame) -> np.ndarray:
    return events["index"].to_numpy() - 1


def test_without_hta_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_hta(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.partition(".")[0] == "hta":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_hta)
    with pytest.raises(Missing, match=r"Install torch-diagnose\[hta\]\."):
        diagnose.to_hta(Run((), ()))


def test_events_are_those_hta_reads(case: Case) -> None:
    assert sorted(case.filled.t.traces) == sorted(case.read.t.traces)
    for rank in case.run.ranks:
        read, filled = case.both(rank)
        assert len(filled) == len(read)
        for column in AS_READ:
            np.testing.assert_array_equal(filled[column], read[column], err_msg=column)
        standing = filled["s_name"].str.contains("(0): ", regex=False).to_numpy()
        np.testing.assert_array_equal(filled["s_name"][~standing], read["s_name"][~standing])
        # HTA gives work an iteration on streams above 0 only, and HIP's default stream is 0.
        known = read["iteration"].notna().to_numpy()
        assert (read["stream"][~known] == 0).all()
        np.testing.assert_array_equal(filled["iteration"][known], read["iteration"][known])
        copied = (read["s_cat"] == "gpu_memcpy").to_numpy()  # Of a memset, and of HIP's calls, our tables keep no size.
        np.testing.assert_array_equal(filled["bytes"][copied], read["bytes"][copied])
        np.testing.assert_array_equal(linked(filled), linked(read))


def linked(events: pd.DataFrame) -> pd.Series:
    """`index_correlation` with the position of the other event in place of its label, which differs."""
    label = events["index_correlation"].to_numpy()
    position = pd.Series(np.arange(len(events)), index=events.index).reindex(label).to_numpy()
    return np.where(label > 0, position, label)


def test_times_differ_only_where_a_double_cannot_tell(case: Case) -> None:
    for rank in case.run.ranks:
        read, filled = case.both(rank)
        bases = [one.t.meta_data[rank.index].get("baseTimeNanoseconds", 0) // 1000 for one in (case.filled, case.read)]
        apart_us = case.filled.t.min_ts + bases[0] - (case.read.t.min_ts + bases[1])
        ids = span_ids(filled)
        start_ns = rank.spans["start_ns"].to_numpy()[ids] + rank.zero_unix_ns
        end_ns = start_ns + rank.spans["dur_ns"].to_numpy()[ids]
        # A double is off by half its spacing at most; the end, a sum, by that of the start and its own.
        spacing_ns = 1000 * np.spacing(float(read["ts"].max() + case.read.t.min_ts))
        for exact_ns, their_us, our_us, error_ns in (
            (start_ns, read["ts"], filled["ts"], spacing_ns / 2),
            (end_ns, read["ts"] + read["dur"], filled["ts"] + filled["dur"], spacing_ns),
        ):
            off = our_us.to_numpy() - their_us.to_numpy() + apart_us
            from_whole_us = np.minimum(exact_ns % 1000, -exact_ns % 1000)
            assert (np.abs(off) <= (from_whole_us <= error_ns)).all()
        if rank.provenance.resolution_ns == 1000:
            np.testing.assert_array_equal(filled[["ts", "dur"]], read[["ts", "dur"]])


ANALYSES: dict[str, Callable[[Any, int], Any]] = {
    "temporal_breakdown": lambda hta, rank: hta.get_temporal_breakdown(visualize=False),
    "idle_time_breakdown": lambda hta, rank: hta.get_idle_time_breakdown(
        ranks=[rank], visualize=False, show_idle_interval_stats=True
    ),
    "comm_comp_overlap": lambda hta, rank: hta.get_comm_comp_overlap(visualize=False),
    "gpu_kernel_breakdown": lambda hta, rank: hta.get_gpu_kernel_breakdown(visualize=False),
    "gpu_user_annotation_breakdown": lambda hta, rank: hta.get_gpu_user_annotation_breakdown(visualize=False),
    "queue_length_summary": lambda hta, rank: hta.get_queue_length_summary(ranks=[rank]),
    "queue_length_time_series": lambda hta, rank: hta.get_queue_length_time_series(ranks=[rank]),
    "time_spent_blocked_on_full_queue": lambda hta, rank: hta.get_time_spent_blocked_on_full_queue(
        hta.get_queue_length_time_series(ranks=[rank]), max_queue_length=16
    ),
    "cuda_kernel_launch_stats": lambda hta, rank: hta.get_cuda_kernel_launch_stats(ranks=[rank], visualize=False),
    "profiler_steps": lambda hta, rank: hta.get_profiler_steps(),
    "trace_duration": lambda hta, rank: hta.t.get_trace_duration(rank),
}


def test_analyses_are_those_of_hta_alone(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal, with the times of HTA's doubles in the one trace that has others (see the test above)."""
    for rank in case.run.ranks[:3]:  # of a job: each takes seconds
        read, filled = case.both(rank)
        if not np.array_equal(filled[["ts", "dur"]], read[["ts", "dur"]]):
            assert "resnet_v100" in rank.provenance.path
            filled = filled.assign(ts=read["ts"].to_numpy(), dur=read["dur"].to_numpy())
            monkeypatch.setitem(case.filled.t.traces, rank.index, filled)
        for name, analysis in ANALYSES.items():
            with monkeypatch.context() as patch:
                if name == "idle_time_breakdown":
                    # Of work whose launch is not in the file, HTA takes the file's first event for the launch.
                    known = read["index_correlation"].where(read["index_correlation"] != 0, -1)
                    patch.setitem(case.read.t.traces, rank.index, read.assign(index_correlation=known))
                same(analysis(case.filled, rank.index), analysis(case.read, rank.index))


def same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    if isinstance(ours, dict):
        assert list(ours) == list(theirs)
        same(tuple(ours.values()), tuple(theirs.values()))
    elif isinstance(ours, tuple):
        for one, other in zip(ours, theirs, strict=True):
            same(one, other)
    elif isinstance(ours, pd.DataFrame):
        if ours.index.name == "index":  # Numbers of events: those of the file there, our span ids here.
            ours, theirs = ours.reset_index(drop=True), theirs.reset_index(drop=True)
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False, check_index_type=False, check_exact=True)
    else:
        assert ours == theirs


@pytest.fixture(scope="module")
def one_rank(corpus: Path) -> Case:
    """A rank that HTA's call graph can take: rounding to whole us gives most traces in ns spans of -1 us."""
    analysis = pytest.importorskip("hta.trace_analysis").TraceAnalysis
    path = corpus / "kineto/param/dlrm_8_ranks/worker0.pt.trace.json.gz"
    run = diagnose.load(path)
    return Case(run, analysis(trace_files={0: str(path)}), diagnose.to_hta(run))


def marked(path: Path, argument: str) -> Counter[str]:
    """Names of the events that HTA has marked in the trace it wrote."""
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return Counter(event["name"] for event in events if event.get("ph") == "X" and argument in event["args"])


def test_kernel_sequences_and_the_trace_that_shows_them(one_rank: Case, tmp_path: Path) -> None:
    found, shown = [], []
    for name, hta in (("read", one_rank.read), ("filled", one_rank.filled)):
        folder = tmp_path / name
        folder.mkdir()
        sequences = hta.get_frequent_cuda_kernel_sequences(
            "autograd::engine", str(folder), min_pattern_len=1, visualize=False, compress_other_kernels=False
        )
        found.append(sequences)
        shown.append(marked(next(folder.iterdir()), "Patterns"))
    same(found[1], found[0])
    assert shown[1] == shown[0] != Counter()


def test_critical_path_and_the_trace_that_shows_it(one_rank: Case, tmp_path: Path) -> None:
    """Of operations of no duration any may be on the path, so what bounds it is compared, and how long each does."""
    bounds = []
    for name, hta in (("read", one_rank.read), ("filled", one_rank.filled)):
        graph, found = hta.critical_path_analysis(rank=0, annotation="ProfilerStep", instance_id=0)
        assert found
        bounds.append(graph.get_critical_path_breakdown().groupby(["bound_by", "s_name"])["duration"].sum())
        written = hta.overlay_critical_path_analysis(0, graph, output_dir=str(tmp_path / name))
        names = hta.t.symbol_table.get_sym_table()
        on_path = hta.t.traces[0].loc[sorted(graph.critical_path_events_set), "name"]
        assert marked(Path(written), "critical") == Counter(names[code] for code in on_path)
    timed = [bound[bound > 0].sort_index() for bound in bounds]
    pd.testing.assert_series_equal(timed[1], timed[0])


def test_bandwidth_of_copies(case: Case) -> None:
    """Kineto divides by the duration before it cuts that off to what it writes; we have only what it writes."""
    for rank in case.run.ranks:
        read, filled = case.both(rank)
        timed = (filled["memory_bw_gbps"] > 0).to_numpy()
        assert set(filled["s_cat"][timed]) == {"gpu_memcpy"}
        dur_ns = rank.spans["dur_ns"].to_numpy()[span_ids(filled[timed])]
        true_ns = (read["bytes"][timed] / read["memory_bw_gbps"][timed]).to_numpy(dtype=np.float64)
        rounding = 1e-12 * true_ns
        assert (dur_ns <= true_ns + rounding).all()
        assert (true_ns < dur_ns + rank.provenance.resolution_ns + rounding).all()
