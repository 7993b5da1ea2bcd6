"""Figures of real traces by a second method: the JSON read with exact decimals, and plain Python sweeps over events."""

import gzip
import json
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Level, OutcomeKind
from diagnose.facts.core.base import Facts
from diagnose.facts.core.breakdown import breakdown, device_time
from diagnose.facts.core.idle import idle
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.device.kernels import kernels
from diagnose.source import ranks

WITH_DEVICE = (
    *("hta/alexnet_a100_sync_events.json.gz", "hta/gpu_user_annotations.json.gz", "hta/mi250_rocm62.json.gz"),
    *("hta/nccl_a100_rank0_of_2.json.gz", "hta/resnet_v100_5_steps.json.gz"),
    *("param/dlrm_8_ranks/worker1.pt.trace.json.gz", "param/linear.json.gz", "param/resnet.json.gz"),
    *("tensorboard/resnet50_autograd_0_workers.json.gz", "tensorboard/resnet50_autograd_4_workers.json.gz"),
    *("tracelens/b200_eager.json.gz", "tracelens/h100_bert_small.json.gz", "tracelens/h100_qwen05b.json.gz"),
    *("tracelens/mi210_gpu_only.json.gz", "tracelens/mi300_qwen05b.json.gz", "tracelens/mi300_resnet18.json.gz"),
    *("tracelens/mi300_resnet_act_checkpoint.json.gz", "tracelens/sglang_decode_graphs.json.gz"),
)
Span = tuple[int, int]


class Plain:
    """A trace as plain Python: device operations in exact ns from the first event that the reader keeps."""

    def __init__(self, path: Path) -> None:
        text = gzip.decompress(path.read_bytes()).decode("utf-8", "replace")
        document = json.loads(text, parse_float=Decimal, strict=False)
        events = document if isinstance(document, list) else document["traceEvents"]
        timed = [
            e
            for e in events
            if (e.get("ph") == "X" and e.get("cat") not in ("Trace", None)) or e.get("name") == "[memory]"
        ]
        zero = min(int(e["ts"] * 1000) for e in timed)
        self.work: list[tuple[int, int, str, int]] = []
        self.host: list[tuple[int, int, str, Any]] = []
        self.calls: dict[int, int] = {}
        for event in timed:
            start = int(event["ts"] * 1000) - zero
            end = start + int(event.get("dur", 0) * 1000)
            category, args = event.get("cat"), event.get("args") or {}
            if category in ("kernel", "Kernel"):
                self.work.append((start, end, _kind(event["name"]), args.get("correlation", -1)))
            elif category in ("gpu_memcpy", "gpu_memset", "Memcpy", "Memset"):
                self.work.append((start, end, "copy", args.get("correlation", -1)))
            elif category in ("cuda_runtime", "cuda_driver", "Runtime"):
                self.calls.setdefault(args.get("correlation", -1), start)
            elif category != "gpu_user_annotation":
                self.host.append((start, end, event["name"], event["tid"]))

    def covered(self, window: Span, *kinds: str) -> set[Span]:
        """Disjoint spans of the window in which work of these kinds ran."""
        merged: list[list[int]] = []
        for start, end, kind, _ in sorted(self.work):
            start, end = max(start, window[0]), min(end, window[1])
            if kind not in kinds or end <= start:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return {(a, b) for a, b in merged}

    def step_bounds(self, marks: list[Span]) -> list[int]:
        """Last device end of every mark's launches, in order."""
        ends = [0] * len(marks)
        for _, end, _, correlation in self.work:
            call = self.calls.get(correlation) if correlation > 0 else None
            for k, (start, stop) in enumerate(marks):
                if call is not None and start <= call < stop:
                    ends[k] = max(ends[k], end)
        return ends


def _kind(kernel: str) -> str:
    """Found by reading all names of these traces."""
    if kernel.startswith(("nccl", "rccl")) or "multimem_all_reduce" in kernel:
        return "communication"
    return "copy" if "amd_rocclr" in kernel else "compute"


def length(spans: set[Span]) -> int:
    return sum(end - start for start, end in spans)


@pytest.mark.parametrize("name", WITH_DEVICE)
def test_figures_agree_with_a_plain_sweep_and_plain_counting(corpus: Path, name: str) -> None:
    plain = Plain(corpus / "kineto" / name)
    facts = Facts(ranks.read(corpus / "kineto" / name))
    used, time = steps(facts), device_time(facts)
    window = (used.start_ns, used.end_ns)
    compute = length(plain.covered(window, "compute"))
    no_copies = length(plain.covered(window, "compute", "communication"))
    busy = length(plain.covered(window, "compute", "communication", "copy"))
    assert time.busy.total == busy
    assert time.compute.total == compute
    assert time.exposed_communication.total == no_copies - compute
    assert time.exposed_copies.total == busy - no_copies
    unseen = time.work_not_recorded.total  # Within one replay of a CUDA graph, whose kernels are not all recorded.
    assert time.idle.total + unseen == window[1] - window[0] - busy
    parts = breakdown(facts)
    assert parts.busy_ns + parts.idle_ns + parts.work_not_recorded_ns == parts.step_ns
    assert parts.compute_ns + parts.exposed_communication_ns + parts.exposed_copy_ns == parts.busy_ns
    assert sum(one.ns for one in idle(facts)) == parts.idle_ns
    _kernels_agree(plain, facts)
    if name in STEPPED:
        _step_times_agree(plain, facts, STEPPED[name])


def _kernels_agree(plain: Plain, facts: Facts) -> None:
    used = steps(facts)
    inside = [(start, end, kind) for start, end, kind, _ in plain.work if used.start_ns <= start < used.end_ns]
    rows = kernels(facts)
    spans = facts.rank.spans
    is_kernel = (spans["kind"] == "kernel") & (spans["start_ns"] >= used.start_ns) & (spans["start_ns"] < used.end_ns)
    counted = Counter(spans["name"][is_kernel])
    assert {row.name: row.calls for row in rows} == counted
    total = sum(end - start for start, end, kind in inside if kind != "copy")
    of_kernels = sum(row.ns for row in rows if row.kind != "memory")
    assert abs(of_kernels * used.count - total) <= used.count * len(rows)  # each row is rounded to 1 ns per step


STEPPED = {
    "hta/nccl_a100_rank0_of_2.json.gz": "ProfilerStep#",
    "hta/resnet_v100_5_steps.json.gz": "ProfilerStep#",
    "tracelens/mi300_resnet_act_checkpoint.json.gz": "ProfilerStep#",
    "tensorboard/resnet50_autograd_0_workers.json.gz": "Optimizer.step#",
    "tensorboard/resnet50_autograd_4_workers.json.gz": "Optimizer.step#",
    "param/resnet.json.gz": "Optimizer.step#",
    "tracelens/mi300_resnet18.json.gz": "Optimizer.step#",
}


def _step_times_agree(plain: Plain, facts: Facts, marker: str) -> None:
    """With a plain search for the last device end."""
    found = sorted((start, end) for start, end, label, _ in plain.host if label.startswith(marker))
    if marker == "Optimizer.step#":
        found = [(before[1], after[1]) for before, after in pairwise(found)]
    ends = plain.step_bounds(found)
    used = steps(facts)
    assert used.measure == Measure.DEVICE
    assert used.bounds_ns.tolist() == ends[: len(used.bounds_ns)]
    assert len(ends) - len(used.bounds_ns) in (0, 1)  # a last step that the window cut is left out


def test_five_equal_steps_of_a_v100_are_equal_on_the_device(corpus: Path) -> None:
    """Derived by hand; the host's spans of the same steps last 35 to 96 ms."""
    facts = Facts(ranks.read(corpus / "kineto/hta/resnet_v100_5_steps.json.gz"))
    assert [round(ns / 1e6, 3) for ns in steps(facts).times_ns] == [95.737, 95.571, 95.664, 95.395]
    assert round(steps(facts).window_ns / 1e6, 2) == 382.37
    assert round(device_time(facts).busy.total / 1e6, 1) == 377.9


def test_two_steps_of_a_data_parallel_run(corpus: Path) -> None:
    facts = Facts(ranks.read(corpus / "kineto/hta/nccl_a100_rank0_of_2.json.gz"))
    time = device_time(facts)
    assert [round(ns / 1e6, 2) for ns in steps(facts).times_ns] == [219.82, 224.96]
    figures = (time.busy, time.compute, time.exposed_communication, time.exposed_copies, time.idle)
    assert [round(figure.total / 1e6, 2) for figure in figures] == [108.06, 77.15, 29.40, 1.52, 336.72]


WRONG_SHARE = 0.05  # From this share of the step on, a finding that an expert would not share is an error.
TABLE = (Path(__file__).parent / "data" / "verdicts.tsv").read_text(encoding="utf-8")
VERDICTS = {line.split("\t")[0]: line.split("\t")[1:] for line in TABLE.splitlines() if not line.startswith("#")}
"""What comes first of its kind, what else may claim as much, the least share of the first of all, `unsure` if no
finding may have more than low confidence, and why."""


@pytest.mark.parametrize("name", VERDICTS)
def test_the_ranked_result_is_what_an_expert_would_say(analyzed: Callable[[str], Diagnosis], name: str) -> None:
    (first, also, least_share, sure, why), found = VERDICTS[name], analyzed(f"kineto/{name}")
    assert found.conclusive
    assert [outcome.rule for outcome in found.outcomes if outcome.outcome is OutcomeKind.CRASHED] == []
    large = [one for one in found.findings if one.share_of_step >= WRONG_SHARE and not one.hidden]
    assert {one.rule for one in large} <= {first, *also.split()}, why
    if first != "-":
        hit = next(one for one in found.findings if one.rule == first)
        assert hit == next(one for one in found.findings if one.kind is hit.kind), why  # Of faults, or of options.
        assert hit.share_of_step >= float(least_share)
    if sure == "unsure":
        assert {finding.confidence.level for finding in found.findings} <= {Level.LOW}


def test_every_real_trace_has_a_verdict(corpus: Path) -> None:
    files = {str(path.relative_to(corpus / "kineto")) for path in (corpus / "kineto").glob("*/*.json*")}
    assert files | {"param/dlrm_8_ranks"} == set(VERDICTS)


def test_what_the_loader_hid_is_what_is_found_once_it_is_fixed(analyzed: Callable[[str], Diagnosis]) -> None:
    """The same training before and after: what was found is found no more, and what it hid has a card."""
    before, after = (analyzed(f"kineto/tensorboard/resnet50_autograd_{k}_workers.json.gz").findings for k in (0, 4))
    assert "dataloader_starvation" in {one.rule for one in before}
    assert "dataloader_starvation" not in {one.rule for one in after}
    assert [one.minor for one in before if one.rule == "no_mixed_precision" and one.hidden] == [True]
    assert [one.minor for one in after if one.rule == "no_mixed_precision"] == [False]
