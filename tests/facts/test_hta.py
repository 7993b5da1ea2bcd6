"""HolisticTraceAnalysis (HTA) as a second opinion: what it reads against what we fill it with, and against our facts.

Every difference has a reason, and is bounded by what that reason can do:

- HTA reads times into doubles. At Unix microseconds a double holds only quarters of one, ours are exact.
- HTA moves starts up and ends down to whole microseconds: what runs from s to e becomes the whole microseconds inside,
  so it loses less than 1 us at either end. Nothing else loses time.
- HTA leaves out device work launched in the last step, and, where there are steps, work without a recorded launch.
"""

from __future__ import annotations

import builtins
import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import diagnose
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.breakdown import device_time
from diagnose.facts.core.device import DeviceWork, WorkClass, device_work
from diagnose.facts.core.launches import launch_table
from diagnose.trace import intervals
from diagnose.trace.model import Rank, Run

TRACES = (
    "kineto/hta/resnet_v100_5_steps.json.gz",
    "kineto/hta/nccl_a100_rank0_of_2.json.gz",
    "kineto/param/resnet.json.gz",
    "kineto/tracelens/mi300_resnet18.json.gz",
    "kineto/param/dlrm_8_ranks",
)
AS_READ = ("s_cat", "s_name", "pid", "tid", "stream", "correlation", "external_id")
ORDER = ["s_cat", "s_name", "stream", "correlation", "external_id", "ts", "dur"]


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
            one.t.traces[index] = text.sort_values(ORDER, kind="stable")
    return case


def span_ids(events: pd.DataFrame) -> np.ndarray:
    """Our span ids of events that we filled in."""
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


@pytest.mark.parametrize("name", ANALYSES)
def test_analyses_are_those_of_hta_alone(case: Case, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal, with the times of HTA's doubles in the one trace that has others (see the test above)."""
    for rank in case.run.ranks:
        read, filled = case.both(rank)
        if name == "idle_time_breakdown":
            # Of work whose launch is not in the file, HTA takes the file's first event for the launch.
            known = read["index_correlation"].where(read["index_correlation"] != 0, -1)
            monkeypatch.setitem(case.read.t.traces, rank.index, read.assign(index_correlation=known))
        if not np.array_equal(filled[["ts", "dur"]], read[["ts", "dur"]]):
            assert "resnet_v100" in rank.provenance.path
            filled = filled.assign(ts=read["ts"].to_numpy(), dur=read["dur"].to_numpy())
            monkeypatch.setitem(case.filled.t.traces, rank.index, filled)
        same(ANALYSES[name](case.filled, rank.index), ANALYSES[name](case.read, rank.index))


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
    timed = [one[one > 0].sort_index() for one in bounds]
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


def work_hta_keeps(rank: Rank) -> DeviceWork:
    """Device work; where two or more `ProfilerStep`s are marked, without that of no launch, or of one in the last."""
    work = device_work(Facts(rank))
    keep = np.ones(len(work.ids), dtype=bool)
    if rank.provenance.step_marker == "ProfilerStep" and len(rank.steps) > 1:
        called_ns = rank.spans["start_ns"].to_numpy()[work.launch]
        keep = (work.launch >= 0) & (called_ns < rank.steps[-1].start_ns)
    return DeviceWork(**{name: values[keep] for name, values in vars(work).items()})


def pieces(events: pd.DataFrame, types: tuple[str, ...] = ()) -> int:
    """How many separate stretches HTA sees device work of these types in (of none named, any)."""
    utils = pytest.importorskip("hta.utils.utils")
    work = events[events["stream"] >= 0]
    if types:
        work = work[work["s_name"].map(utils.get_kernel_type).isin(types)]
    return len(utils.merge_kernel_intervals(work.copy()))


def lost_ns(rank: Rank, stretches: int) -> int:
    """At most this is lost by rounding `stretches` to whole us: 1 us at each end; nothing where all times are whole."""
    return 0 if rank.provenance.resolution_ns == 1000 else 2000 * stretches


def test_breakdown_against_our_intervals(case: Case) -> None:
    # Filled by us, because what HTA's doubles do to its own times is measured above.
    theirs = case.filled.get_temporal_breakdown(visualize=False).set_index("rank")
    for rank in case.run.ranks:
        events, work = case.filled.t.traces[rank.index], work_hta_keeps(rank)
        assert sorted(span_ids(events[events["stream"] >= 0])) == sorted(work.ids)
        busy, compute = work.of(), work.of(WorkClass.COMPUTE)
        window_ns = int(work.end_ns.max() - work.start_ns.min())
        if len(work.ids) == len(device_work(Facts(rank)).ids):
            time = device_time(Facts(replace(rank, steps=())))  # Without steps our window is HTA's: all the work.
            assert (time.busy.total, time.compute.total) == (busy.total, compute.total)
            assert time.idle.total == window_ns - busy.total
        row = 1000 * theirs.loc[rank.index]
        busy_lost, compute_lost = lost_ns(rank, pieces(events)), lost_ns(rank, pieces(events, ("COMPUTATION",)))
        window_lost = lost_ns(rank, 1)
        assert 0 <= window_ns - row["kernel_time(us)"] <= window_lost
        assert 0 <= busy.total - (row["kernel_time(us)"] - row["idle_time(us)"]) <= busy_lost
        assert -busy_lost <= (window_ns - busy.total) - row["idle_time(us)"] <= window_lost
        assert 0 <= compute.total - row["compute_time(us)"] <= compute_lost
        # HTA's "non compute" is ours without compute: exposed communication and exposed copies.
        exposed_ns = intervals.subtract(busy, compute).total
        assert -compute_lost <= exposed_ns - row["non_compute_time(us)"] <= busy_lost


def test_overlap_against_our_intervals(case: Case) -> None:
    theirs = case.filled.get_comm_comp_overlap(visualize=False).set_index("rank")["comp_comm_overlap_pctg"]
    for rank in case.run.ranks:
        events, work = case.filled.t.traces[rank.index], work_hta_keeps(rank)
        compute, communication = work.of(WorkClass.COMPUTE), work.of(WorkClass.COMMUNICATION)
        if not communication.size:
            assert np.isnan(theirs[rank.index])
            continue
        overlap_ns = intervals.intersect(compute, communication).total
        lost = lost_ns(rank, pieces(events, ("COMMUNICATION",)))
        overlap_lost = lost + lost_ns(rank, pieces(events, ("COMPUTATION",)))
        low = 100 * (overlap_ns - overlap_lost) / communication.total
        high = 100 * overlap_ns / (communication.total - lost)
        printed = 0.005 + 1e-9  # HTA gives two decimals.
        assert low - printed <= theirs[rank.index] <= high + printed


def test_kernel_times_against_our_spans(case: Case) -> None:
    """The sum of each kernel's durations, of each rank; HTA's first ten and the rest as `others`, so ask for all."""
    _, theirs = case.filled.get_gpu_kernel_breakdown(visualize=False, num_kernels=100_000)
    for rank in case.run.ranks:
        work = work_hta_keeps(rank)
        frame = pd.DataFrame(
            {
                "name": rank.spans["name"].astype(str).to_numpy()[work.ids],
                "kernel_type": np.array(["COMPUTATION", "COMMUNICATION", "MEMORY"])[work.work_class],
                "dur_ns": work.end_ns - work.start_ns,
            }
        )
        ours = frame.groupby(["kernel_type", "name"])["dur_ns"].agg(["sum", "size"])
        their_ns = 1000 * theirs[theirs["rank"] == rank.index].set_index(["kernel_type", "name"])["sum (us)"]
        assert set(their_ns.index) == set(ours.index)
        lost = ours["sum"] - their_ns.reindex(ours.index)
        assert (lost >= 0).all()
        assert (lost <= [lost_ns(rank, operations) for operations in ours["size"]]).all()


def test_queue_length_against_our_depth(case: Case) -> None:
    """HTA counts a launch until its work begins, and itself; we count until it ends, and only what was before it.

    So ours = HTA's - 1 + work running when the call begins. In which order calls and starts within one microsecond
    come is chance in HTA: each of the others in the call's microsecond can be counted or not.
    """
    for rank in case.run.ranks:
        series = case.filled.get_queue_length_time_series(ranks=[rank.index])[rank.index]
        table, work = launch_table(Facts(rank)), device_work(Facts(rank))
        counted = np.isin(table.call + 1, series.index)
        kept = np.isin(table.work, work_hta_keeps(rank).ids)
        np.testing.assert_array_equal(counted, kept)
        calls, depth = table.call[counted], table.depth[counted]
        at_call = series.loc[calls + 1]
        tied = series.groupby(["stream", "ts"])["queue_length"].transform("size").loc[calls + 1] - 1
        begin_ns, track = rank.spans["start_ns"].to_numpy()[calls], rank.spans["track"].to_numpy()[table.work[counted]]
        running = np.zeros(len(calls), dtype=np.int64)
        for one in np.unique(track):
            mine = track == one
            of_track = (work.track == one) & (work.launch >= 0)
            started = np.searchsorted(np.sort(work.start_ns[of_track]), begin_ns[mine], side="right")
            ended = np.searchsorted(np.sort(work.end_ns[of_track]), begin_ns[mine], side="right")
            running[mine] = started - ended
        off = depth - (at_call["queue_length"].to_numpy() - 1 + running)
        assert (np.abs(off) <= tied.to_numpy()).all()


def test_launch_delays_against_ours(case: Case) -> None:
    """HTA's delay begins when the call returns, ours when it begins; HTA knows CUDA's plain calls, and no HIP."""
    for rank in case.run.ranks:
        theirs = case.filled.get_cuda_kernel_launch_stats(ranks=[rank.index], visualize=False)[rank.index]
        if "mi300" in rank.provenance.path:
            assert theirs.empty
            continue
        table = launch_table(Facts(rank))
        dur_ns = rank.spans["dur_ns"].to_numpy()
        after_return_ns = np.maximum(table.delay_ns - dur_ns[table.call], 0)
        ours = pd.Series(after_return_ns, index=rank.spans["correlation"].to_numpy()[table.work])
        known = theirs[theirs["correlation"].isin(ours.index)].set_index("correlation")
        assert len(known) == np.isin(table.work, work_hta_keeps(rank).ids).sum()
        # The call's end is rounded down, the work's start up, so HTA's gap is the longer.
        longer = 1000 * known["launch_delay"] - ours.reindex(known.index)
        assert (longer >= 0).all()
        assert (longer <= lost_ns(rank, 1)).all()
