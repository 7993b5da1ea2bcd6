"""Why does the host wait for the device? Blocking calls by reason, op and line, and what waiting cost the device.

One `.item()` is one wait, though it may block in two calls (a pageable copy, then a stream synchronisation): blocking
calls of one innermost op count once, under the name of the last.
"""

from enum import Enum

import numpy as np
import numpy.typing as npt
import pandas as pd
from msgspec import Struct

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.breakdown import IDLE_CAUSES, NO_DEVICE, TimeCause, launch_table, round_half_up
from diagnose.facts.core.device import device_work
from diagnose.facts.core.host import BLOCKING, ApiCalls, api_calls, asking_ops, enclosing_op
from diagnose.facts.core.idle import DRAIN_TOLERANCE_NS, idle_gaps
from diagnose.facts.core.inputs import grouped, name_codes, name_of, named
from diagnose.facts.core.spans import host_spans, used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import reading_ops
from diagnose.facts.device.memory import require_calls
from diagnose.facts.device.transfers import copy_before
from diagnose.facts.run.program import Language, program
from diagnose.trace import enums, intervals, kinds
from diagnose.trace.enums import Direction, SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import Activity, ApiKind

SCALAR_BYTES = 64  # Reads up to this size are a few numbers: a flag, a loss, a handful of metrics.

SCALAR_OPS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"})
"""Ops that bring one number to the host."""

SHAPE_OPS = frozenset(
    {"aten::nonzero", "aten::argwhere", "aten::masked_select", "aten::_unique", "aten::_unique2", "aten::unique_dim"}
    | {"aten::unique_consecutive", "aten::unique_dim_consecutive", "aten::repeat_interleave", "aten::bincount"}
    | {"aten::_coalesce", "torchvision::nms"}
)
"""Ops that read back how large their own result is. `aten::index` with a mask calls `aten::nonzero`."""

SCALER_OPS = ("aten::_amp_foreach_non_finite_check_and_unscale_", "aten::_amp_update_scale_")
"""GradScaler's first and last op of a step. Between them it reads its flag of overflows, just before the optimizer."""


class WaitReason(str, Enum):
    """What the host waits for."""

    SCALAR_READ = "scalar_read"  # A number of the device: `.item()`, `if tensor:`, a `.cpu()` of up to SCALAR_BYTES.
    TENSOR_READ = "tensor_read"  # A copy of a tensor to the host.
    DATA_DEPENDENT_SHAPE = "data_dependent_shape"  # The size of a result: boolean masks, nonzero, unique.
    HOST_TO_DEVICE = "host_to_device"  # A copy to the device: `.to(device)` without non_blocking, or pageable memory.
    SCALER = "scaler"  # GradScaler's overflow flag.
    EXPLICIT = "explicit"  # A synchronisation that no op asked for: `torch.cuda.synchronize()`, `event.synchronize()`.
    ALLOCATOR = "allocator"  # A free, which waits for all work of the device.
    OTHER = "other"


_REASONS = list(WaitReason)
_CODES = {reason: code for code, reason in enumerate(_REASONS)}
_NEVER = np.iinfo(np.int64).max


class HostWait(Struct, frozen=True):
    """Waits for one reason, by one op at one line, at least one of them in the used steps."""

    reason: WaitReason
    call: str  # The blocking call; of several of one op the last.
    asked_by: str  # The outermost op around it; "" if the program called it itself.
    op: str  # The innermost op around it; "" if none.
    site: Site | None
    ids: IntArray  # The blocking calls.
    op_ids: IntArray  # The outermost op around each of `ids` that only starts reads of numbers, or -1. Shape as `ids`.
    work_ids: IntArray  # The copies between host and device that were waited for.
    total_calls: int  # Waits in all used steps.
    steps_seen: int  # Used steps with at least one.
    blocked_ns: int  # Host time in the calls, per step.
    drained_idle_ns: int  # Idle time of the device, with nothing queued, that began in these waits; per step.


@fact
def host_waits(facts: Facts) -> tuple[HostWait, ...]:
    """Waits of the training threads, those that left the device idle longest first.

    Raises Missing like `syncs`, and without device work: what waiting cost is not known then.

    The profiler's own synchronisation at the end of a recording is left out.
    """
    if not len(device_work(facts).ids):
        raise NO_DEVICE
    require_calls(facts)
    calls = _waits(facts)
    names = (name_codes(facts, calls[spans].to_numpy()) for spans in ("last", "asked", "op"))
    groups = grouped(facts, calls["id"].to_numpy(), calls["reason"].to_numpy(), *names)
    found = [_group(facts, calls.iloc[rows], site) for rows, site in groups if (calls["step"].iloc[rows] >= 0).any()]
    return tuple(sorted(found, key=lambda one: (-one.drained_idle_ns, -one.blocked_ns)))


def _waits(facts: Facts) -> pd.DataFrame:
    """Blocking calls in order of start, with the innermost and outermost op around each, what `reading_ops` says, the
    copy it waits for, the last blocking call of its op, and the used step; -1 for none.
    """
    calls = api_calls(facts)
    freeing = _waiting_frees(facts, calls)
    rows = np.flatnonzero((calls.blocks | freeing) & ~_profilers_own(facts, calls))
    ids = calls.ids[rows]
    op, copy = enclosing_op(facts, ids), copy_before(facts, ids)
    reason = _reasons(facts, op, copy)
    # A read of an op that was not recorded waits for its copy; C++ and CUDA programs have no other ops.
    asks = "ops" in facts.rank.provenance.recorded or program(facts).language is not Language.PYTHON
    only_sync = (op < 0) & (copy < 0) & calls.of(*BLOCKING)[rows] & asks
    reason[only_sync] = _CODES[WaitReason.EXPLICIT]
    reason[freeing[rows]] = _CODES[WaitReason.ALLOCATOR]
    last = pd.Series(ids).groupby(np.where(op >= 0, op, ids)).transform("max").to_numpy()
    reason[_scaler_reads(facts, ids, last, reason)] = _CODES[WaitReason.SCALER]
    return pd.DataFrame(
        {
            "id": ids,
            "reason": reason,
            "op": op,
            "asked": asking_ops(facts, ids),
            "only_reads": reading_ops(facts, ids, copy, reason == _CODES[WaitReason.SCALAR_READ]),
            "copy": copy,
            "last": last,
            "step": used_step(facts, ids),
            "dur_ns": (calls.end_ns - calls.start_ns)[rows],
            "idle_ns": _drained_idle(facts, calls, rows, freeing[rows]),
        }
    )


def _group(facts: Facts, every: pd.DataFrame, site: Site | None) -> HostWait:
    """One kind of wait at one line. `every` includes calls outside of used steps, whose ids an edit needs."""
    used, first, inside = steps(facts), every.iloc[0], every[every["step"] >= 0]
    copies = every["copy"].to_numpy()
    return HostWait(
        reason=_REASONS[int(first["reason"])],
        call=name_of(facts, int(first["last"])),
        asked_by=name_of(facts, int(first["asked"])),
        op=name_of(facts, int(first["op"])),
        site=site,
        ids=every["id"].to_numpy(),
        op_ids=every["only_reads"].to_numpy(),
        work_ids=np.unique(copies[copies >= 0]),
        total_calls=int(inside["last"].nunique()),
        steps_seen=int(inside["step"].nunique()),
        blocked_ns=round_half_up(int(inside["dur_ns"].sum()), used.count),
        drained_idle_ns=round_half_up(int(every["idle_ns"].sum()), used.count),
    )


def _reasons(facts: Facts, op: IntArray, copy: IntArray) -> IntArray:
    """Position in `_REASONS` of why each call blocks, by its op and the copy that it waits for. Shape as `op`."""
    copies = facts.rank.copies
    direction = copies["direction"].cat.codes.reindex(copy, fill_value=-1).to_numpy()
    size = copies["bytes"].reindex(copy, fill_value=-1).to_numpy()
    shape, scalar = _within(facts, op, SHAPE_OPS, SCALAR_OPS)
    to_host, few = direction == enums.code(Direction.D2H), (size >= 0) & (size <= SCALAR_BYTES)
    reasons = {
        WaitReason.DATA_DEPENDENT_SHAPE: shape,
        WaitReason.SCALAR_READ: scalar | (to_host & few),
        WaitReason.TENSOR_READ: to_host,
        WaitReason.HOST_TO_DEVICE: direction == enums.code(Direction.H2D),
    }
    other = _CODES[WaitReason.OTHER]
    return np.select(list(reasons.values()), [_CODES[reason] for reason in reasons], other).astype(np.int64)


def _within(facts: Facts, op: IntArray, *names: frozenset[str]) -> npt.NDArray[np.bool_]:
    """Whether each op, or one around it, has one of some names; never where there is no op. Shape (names, ops)."""
    ops = host_spans(facts, SpanKind.OP, SpanKind.COLLECTIVE)
    wanted = np.stack([np.append(named(facts, ops.ids, *some), False) for some in names])
    up = np.append(ops.parents, intervals.NONE)
    at = np.where(op >= 0, np.searchsorted(ops.ids, op), intervals.NONE)
    found: npt.NDArray[np.bool_] = wanted[:, at]
    while (at >= 0).any():
        at = up[at]
        found |= wanted[:, at]
    return found


def _scaler_reads(facts: Facts, ids: IntArray, last: IntArray, reason: IntArray) -> npt.NDArray[np.bool_]:
    """Which calls read GradScaler's flag: the last read between its check and the optimizer's step, else the first."""
    starts, tracks = (facts.rank.spans[name].to_numpy()[ids] for name in ("start_ns", "track"))
    checks = host_spans(facts, SpanKind.OP, named=SCALER_OPS[0].__eq__)
    ends = host_spans(facts, SpanKind.OP, named=lambda name: name in SCALER_OPS)
    optimizers = host_spans(
        facts, SpanKind.OP, SpanKind.ANNOTATION, named=lambda name: kinds.activity(name) is Activity.OPTIMIZER_STEP
    )
    read, chosen = reason == _CODES[WaitReason.SCALAR_READ], [last[:0]]
    for thread in np.unique(checks.track):
        mine = np.flatnonzero(read & (tracks == thread))
        start, mark = starts[mine], checks.where(checks.track == thread)
        until = np.append(ends.start_ns[ends.track == thread], _NEVER)
        until = until[np.searchsorted(until, mark.end_ns)]
        optimizer = np.append(optimizers.start_ns[optimizers.track == thread], _NEVER)
        step_at = optimizer[np.searchsorted(optimizer[:-1], mark.end_ns)]
        first = np.searchsorted(start, mark.end_ns)
        at = np.where(step_at < until, np.searchsorted(start, step_at) - 1, first)
        chosen.append(last[mine[at[(at >= first) & (at < np.searchsorted(start, until))]]])
    found: npt.NDArray[np.bool_] = read & np.isin(last, np.concatenate(chosen))
    return found


def _waiting_frees(facts: Facts, calls: ApiCalls) -> npt.NDArray[np.bool_]:
    """Which calls free memory, and return once the device has done what was launched before. Shape (calls,)."""
    work = device_work(facts)
    order = np.argsort(work.launch, kind="stable")[(work.launch < 0).sum() :]
    before = np.searchsorted(work.launch[order], calls.ids) - 1
    done = np.append(np.maximum.accumulate(work.end_ns[order]), 0)[before]
    waited = (before >= 0) & (done > calls.start_ns) & (done <= calls.end_ns + DRAIN_TOLERANCE_NS)
    return calls.of(ApiKind.FREE, ApiKind.HOST_FREE) & waited


def _profilers_own(facts: Facts, calls: ApiCalls) -> npt.NDArray[np.bool_]:
    """Which calls are the profiler's: device syncs in no op, after the last marked step or the last launch. (calls,)"""
    marks = facts.rank.steps
    rows = np.flatnonzero(calls.of(ApiKind.DEVICE_SYNC))
    rows = rows[enclosing_op(facts, calls.ids[rows]) < 0]
    own = np.zeros(len(calls.ids), dtype=bool)
    own[rows[-1:]] = calls.ids[rows[-1:]] > device_work(facts).launch.max(initial=-1)
    if marks:
        own[rows] |= calls.start_ns[rows] >= marks[-1].end_ns
    return own


def _drained_idle(facts: Facts, calls: ApiCalls, rows: IntArray, freeing: npt.NDArray[np.bool_]) -> IntArray:
    """Idle ns of the device that began in each of the calls at `rows`: of cause ALLOCATION if `freeing`, else SYNC."""
    idle_ns = np.zeros(len(rows), dtype=np.int64)
    found = optional(idle_gaps, facts)
    if found is None:
        return idle_ns
    for cause, chosen in ((TimeCause.SYNC, ~freeing), (TimeCause.ALLOCATION, freeing)):
        mine, gaps = np.flatnonzero(chosen), np.flatnonzero(found.cause == IDLE_CAUSES.index(cause))
        begun = np.searchsorted(calls.start_ns[rows[mine]], found.gaps.starts[gaps]) - 1
        gaps, at = gaps[begun >= 0], mine[begun[begun >= 0]]
        fits = found.gaps.starts[gaps] <= calls.end_ns[rows[at]] + DRAIN_TOLERANCE_NS
        np.add.at(idle_ns, at[fits], (found.gaps.ends - found.gaps.starts)[gaps[fits]])
    return idle_ns


class Sync(Struct, frozen=True):
    """Blocking calls of one kind, asked for by one op at one line."""

    call: str
    asked_by: str  # The outermost op around the call; "" if the program called it itself.
    site: Site | None
    calls: int  # In all used steps.
    blocked_ns: int  # Host time in the calls, per step.


@fact
def syncs(facts: Facts) -> tuple[Sync, ...]:
    """Blocking calls on the training threads in the used steps, longest first. Raises Missing without runtime calls."""
    require_calls(facts)
    calls, used = api_calls(facts), steps(facts)
    inside = calls.blocks & (calls.start_ns >= used.start_ns) & (calls.start_ns < used.end_ns)
    ids, dur_ns = calls.ids[inside], (calls.end_ns - calls.start_ns)[inside]
    asked, found = asking_ops(facts, ids), []
    groups = grouped(facts, ids, name_codes(facts, ids), name_codes(facts, asked))
    for rows, site in sorted(groups, key=lambda group: int(group[0][0])):
        call, op = name_of(facts, int(ids[rows[0]])), name_of(facts, int(asked[rows[0]]))
        found.append(Sync(call, op, site, len(rows), round_half_up(int(dur_ns[rows].sum()), used.count)))
    return tuple(sorted(found, key=lambda sync: -sync.blocked_ns))


LONG_KERNEL_NS = 50_000  # A launch takes 3 to 10 us: one as long as such a kernel waited for it. Chosen.

ALIKE = (0.8, 1.2)  # A launch that lasts this share of its kernel's time is taken to have waited for it (our choice).

ALIKE_SHARE = 0.5  # Of the launches of long kernels as long as their kernel, where all wait (as msprof-analyze).

DEPTH = 2  # Queued before such a launch at most: launches also block when the queue is full, then hundreds are queued.


class BlockingLaunches(Struct, frozen=True):
    """How long the launches of kernels over LONG_KERNEL_NS took: with CUDA_LAUNCH_BLOCKING, as long as the kernels."""

    call_ids: IntArray  # Calls that launch one kernel, of any length.
    alike_share: float  # Share of the launches that lasted, over their kernels' time, as ALIKE says.
    depth_median: int  # Queued before the kernel at its launch; hundreds where launches block on a full queue.
    empty_queue_share: float  # Share of the launches that found nothing queued.

    @property
    def block(self) -> bool:
        """Whether launches seem to wait for their kernels, and not for a place in the queue."""
        return self.alike_share >= ALIKE_SHARE and self.depth_median <= DEPTH


@fact
def blocking_launches(facts: Facts) -> BlockingLaunches:
    """The comparison over the used steps. Raises Missing like launch_table, and without long kernels."""
    table, dur, launch = launch_table(facts), facts.rank.spans["dur_ns"].to_numpy(), device_work(facts).launch
    is_kernel = facts.rank.spans["kind"].cat.codes.to_numpy() == enums.code(SpanKind.KERNEL)
    calls, count = np.unique(launch, return_counts=True)
    single = calls[(count == 1) & (calls >= 0)]
    chosen = np.isin(table.call, single) & is_kernel[table.work] & (dur[table.work] > LONG_KERNEL_NS)
    if not chosen.any():
        raise Missing("kernels longer than 50 us", "Record steps with larger batches.")
    ratio = dur[table.call[chosen]] / dur[table.work[chosen]]
    return BlockingLaunches(
        call_ids=np.intersect1d(single, launch[is_kernel[device_work(facts).ids]]),
        alike_share=float(((ratio >= ALIKE[0]) & (ratio <= ALIKE[1])).mean()),
        depth_median=int(np.median(table.depth[chosen])),
        empty_queue_share=float((table.depth[chosen] == 0).mean()),
    )
