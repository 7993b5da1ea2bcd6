"""A Diagnosis as OpenMetrics text, for dashboards and alerts. Times are seconds of the mean step.

Families are gauges, so that readers of Prometheus' older text format take them as well: they know no type `info`.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator

from diagnose.contracts.diagnosis import Diagnosis, RankSummary
from diagnose.contracts.finding import Level, OutcomeKind, RankedFinding
from diagnose.contracts.ledger import device_of
from diagnose.facts.core.steps import Measure
from diagnose.reports.exposition import Family, Sample, seconds, text
from diagnose.trace.model import Severity

MOST_RANKS = 64
"""Ranks with series of their own: of more, those that the others wait for most (our choice)."""

MOST_FINDINGS = 50
"""Findings with series of their own, in the order of the report (our choice)."""

_VERSIONS = ("python", "torch", "cuda", "cuda_runtime", "cuda_driver", "cudnn", "hip", "hip_runtime", "nccl")
"""What is told of versions, where it is known."""


def render(diagnosis: Diagnosis) -> str:
    """All that is known, ending in `# EOF`."""
    return text(FAMILIES, diagnosis)


def _run(diagnosis: Diagnosis) -> Iterator[Sample]:
    about, manifest = diagnosis.provenance, diagnosis.provenance.manifest
    versions = {**about.framework, **({} if manifest is None else manifest.versions)}
    devices = ", ".join(sorted({device.name for device in about.devices if device.name}))
    steps = diagnosis.steps
    yield (
        {
            "tool_version": diagnosis.tool_version,
            "rank": diagnosis.rank,
            "world_size": about.world_size,
            "backend": about.backend,
            "device": devices or (device_of(manifest) if manifest else None),
            "measure": None if steps is None else steps.measure.value,
            **{name: versions.get(name) for name in _VERSIONS},
        },
        1,
    )


def _step(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.steps is not None:
        time = diagnosis.steps.step_time_ns
        for name in ("mean", "median", "min", "max"):
            yield {"rank": diagnosis.rank, "statistic": name}, seconds(getattr(time, name))


def _unprofiled(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.steps is not None:
        yield {"rank": diagnosis.rank}, seconds(diagnosis.steps.unprofiled_step_time_ns)


def _overhead(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.steps is not None:
        yield {"rank": diagnosis.rank}, diagnosis.steps.overhead_ratio


def _steps(diagnosis: Diagnosis) -> Iterator[Sample]:
    steps = diagnosis.steps
    if steps is not None and steps.measure is not Measure.WINDOW:
        yield {"rank": diagnosis.rank, "state": "recorded"}, steps.recorded
        yield {"rank": diagnosis.rank, "state": "used"}, steps.used


def _parts(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.breakdown is not None:
        for part in ("compute", "exposed_communication", "exposed_copy", "idle", "work_not_recorded"):
            yield {"rank": diagnosis.rank, "part": part}, seconds(getattr(diagnosis.breakdown, f"{part}_ns"))


def _idle(diagnosis: Diagnosis) -> Iterator[Sample]:
    causes = Counter[str]()
    for one in diagnosis.idle or ():
        causes[one.cause.value] += one.ns
    for cause, ns in causes.items():
        yield {"rank": diagnosis.rank, "cause": cause}, seconds(ns)


def _host(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.host is not None:
        for activity, ns in diagnosis.host.parts.items():
            yield {"rank": diagnosis.rank, "activity": activity.value}, seconds(ns)


def _kernels(diagnosis: Diagnosis) -> Iterator[Sample]:
    for kernel_kind in diagnosis.kernel_kinds or ():
        yield {"rank": diagnosis.rank, "kind": kernel_kind.label}, seconds(kernel_kind.ns)


def _communication(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.communication is not None:
        exposed, whole = diagnosis.communication.exposed_ns, diagnosis.communication.ns
        yield {"rank": diagnosis.rank, "overlap": "exposed"}, seconds(exposed)
        yield {"rank": diagnosis.rank, "overlap": "hidden"}, seconds(whole - exposed)


def _flops(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.flops is not None:
        yield {"rank": diagnosis.rank}, diagnosis.flops.flops_per_s


def _mfu(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.flops is not None:
        yield {"rank": diagnosis.rank}, diagnosis.flops.mfu


def _memory(diagnosis: Diagnosis) -> Iterator[Sample]:
    for one in diagnosis.memory or ():
        labels = {"rank": diagnosis.rank, "device": one.device}
        yield {**labels, "state": "allocated"}, one.peak_allocated_bytes
        yield {**labels, "state": "reserved"}, one.peak_reserved_bytes


def _capacity(diagnosis: Diagnosis) -> Iterator[Sample]:
    for one in diagnosis.memory or ():
        yield {"rank": diagnosis.rank, "device": one.device}, one.capacity_bytes


def _of_finding(diagnosis: Diagnosis, one: RankedFinding) -> dict[str, object]:
    return {"rank": diagnosis.rank, "rule": one.rule, "code": one.code, "number": one.rank_order}


def _savings(diagnosis: Diagnosis) -> Iterator[Sample]:
    for finding in diagnosis.findings[:MOST_FINDINGS]:
        for bound in ("low", "likely", "high"):
            labels = {**_of_finding(diagnosis, finding), "bound": bound}
            yield labels, seconds(getattr(finding.saving, f"{bound}_ns"))


def _shares(diagnosis: Diagnosis) -> Iterator[Sample]:
    for finding in diagnosis.findings[:MOST_FINDINGS]:
        yield _of_finding(diagnosis, finding), finding.share_of_step


def _findings(diagnosis: Diagnosis) -> Iterator[Sample]:
    """None are a number too, unless nothing could be priced."""
    if diagnosis.replay is not None:
        found = Counter(finding.confidence.level for finding in diagnosis.findings if not finding.minor)
        for level in Level:
            yield {"rank": diagnosis.rank, "confidence": level.value}, found[level]


def _together(diagnosis: Diagnosis) -> Iterator[Sample]:
    together = None if diagnosis.replay is None else diagnosis.replay.together
    if together is not None:
        for bound in ("low", "likely", "high"):
            yield {"rank": diagnosis.rank, "bound": bound}, seconds(getattr(together, f"{bound}_ns"))


def _rules(diagnosis: Diagnosis) -> Iterator[Sample]:
    ended = Counter(one.outcome for one in diagnosis.outcomes)
    for outcome in OutcomeKind if ended else ():
        yield {"rank": diagnosis.rank, "outcome": outcome.value}, ended[outcome]


def _notes(diagnosis: Diagnosis) -> Iterator[Sample]:
    count = Counter(note.severity for note in diagnosis.integrity)
    for severity in Severity:
        yield {"severity": severity.value}, count[severity]


def _ranks(diagnosis: Diagnosis) -> Iterator[Sample]:
    yield {}, len(diagnosis.ranks)


def _job_step(diagnosis: Diagnosis) -> Iterator[Sample]:
    if diagnosis.job is not None:
        yield {}, seconds(diagnosis.job.step_ns)


def _spread(diagnosis: Diagnosis) -> Iterator[Sample]:
    means = [rank.step_time_ns.mean for rank in diagnosis.ranks if rank.step_time_ns is not None]
    if len(means) > 1:
        yield {"statistic": "min"}, seconds(min(means))
        yield {"statistic": "median"}, seconds(statistics.median(means))
        yield {"statistic": "max"}, seconds(max(means))


def _own_series(diagnosis: Diagnosis) -> list[RankSummary]:
    """Ranks with series of their own, in order; none if there is one rank only."""
    if len(diagnosis.ranks) < 2:
        return []
    job = () if diagnosis.job is None else diagnosis.job.ranks
    awaited = {one.rank: one.awaited_ns for one in job}
    order = sorted(diagnosis.ranks, key=lambda rank: (-awaited.get(rank.rank, 0), rank.rank))
    return sorted(order[:MOST_RANKS], key=lambda one: one.rank)


def _rank_steps(diagnosis: Diagnosis) -> Iterator[Sample]:
    for one in _own_series(diagnosis):
        yield {"rank": one.rank}, None if one.step_time_ns is None else seconds(one.step_time_ns.mean)


def _rank_compute(diagnosis: Diagnosis) -> Iterator[Sample]:
    for one in _own_series(diagnosis):
        yield {"rank": one.rank}, seconds(one.computing_ns)


def _rank_waiting(diagnosis: Diagnosis) -> Iterator[Sample]:
    for one in _own_series(diagnosis):
        yield {"rank": one.rank}, seconds(one.waiting_ns)


_RANK = ("rank",)
_FINDING = ("rank", "rule", "code", "number")
_RUN = ("tool_version", "rank", "world_size", "backend", "device", "measure", *_VERSIONS)

FAMILIES = (
    Family("run_info", _RUN, "The run: device, versions, and the rank that figures are of. Always 1.", _run),
    Family("step_seconds", (*_RANK, "statistic"), "Time of a step, as recorded.", _step),
    Family("unprofiled_step_seconds", _RANK, "Mean time of a step without the profiler.", _unprofiled),
    Family("profiling_overhead_ratio", _RANK, "How many times as long recorded steps take.", _overhead),
    Family("steps", (*_RANK, "state"), "Steps that were recorded, and that figures are of.", _steps),
    Family("step_part_seconds", (*_RANK, "part"), "What the device does in a step; adds up to it.", _parts),
    Family("idle_seconds", (*_RANK, "cause"), "Idle time of the device; adds up to the part idle.", _idle),
    Family("host_seconds", (*_RANK, "activity"), "What training threads do in a step; adds up to it.", _host),
    Family("kernel_seconds", (*_RANK, "kind"), "Time of kernels; those of several streams may overlap.", _kernels),
    Family("communication_seconds", (*_RANK, "overlap"), "Communication on the device.", _communication),
    Family("flops_per_second", _RANK, "FLOPs of matrix products, convolutions and attention.", _flops),
    Family("mfu_ratio", _RANK, "Model FLOPs utilisation, 0 to 1.", _mfu),
    Family("peak_memory_bytes", (*_RANK, "device", "state"), "Most memory that the allocator had.", _memory),
    Family("memory_capacity_bytes", (*_RANK, "device"), "Memory of the device.", _capacity),
    Family("findings", (*_RANK, "confidence"), "Findings that are worth 1 % of the step or more.", _findings),
    Family("finding_saving_seconds", (*_FINDING, "bound"), "What a fix would save of a step.", _savings),
    Family("finding_saving_ratio", _FINDING, "The likely saving of a finding over the step.", _shares),
    Family("saving_together_seconds", (*_RANK, "bound"), "What all findings that are sure would save.", _together),
    Family("rules", (*_RANK, "outcome"), "Rules by how they ended.", _rules),
    Family("recording_notes", ("severity",), "Notes on what is missing or damaged in the recording.", _notes),
    Family("ranks", (), "Ranks that were analysed.", _ranks),
    Family("job_step_seconds", (), "Mean time of a step of all ranks together.", _job_step),
    Family("ranks_step_seconds", ("statistic",), "Mean steps of all ranks, of several.", _spread),
    Family("rank_step_seconds", _RANK, "Mean step of a rank, of several.", _rank_steps),
    Family("rank_compute_seconds", _RANK, "Computing of a rank in a step, of several.", _rank_compute),
    Family("rank_waiting_seconds", _RANK, "Waiting of a rank for others in a step, of several.", _rank_waiting),
)
"""In the order in which they are written."""
