"""What is each collective for? Advice on communication depends on that more than on how long it takes."""

import re
from collections.abc import Callable
from enum import Enum

import numpy as np
import numpy.typing as npt

from diagnose.facts.communication.collectives import CollectiveTable, collective_table
from diagnose.facts.communication.host_collectives import host_collectives
from diagnose.facts.communication.peers import peers
from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.facts.core.device import device_work
from diagnose.facts.core.inputs import BACKWARD, DDP_FORWARD
from diagnose.facts.core.spans import HostSpans, host_spans
from diagnose.facts.optimizer.optimizer import updates
from diagnose.trace import intervals, kinds
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray

Mask = npt.NDArray[np.bool_]


class Role(Enum):
    """What a collective is for, in words for reports."""

    BUCKET = "gradients in DDP's buckets"
    GRADIENT = "gradients outside buckets"
    SHARD_GATHER = "FSDP parameter gathers"
    SHARD_REDUCE = "FSDP gradient reductions"
    EXCHANGE = "all-to-all exchanges (embeddings, experts)"
    ACTIVATION = "tensor or context parallel activations"
    STAGE = "pipeline activations and gradients"
    NORM = "SyncBatchNorm statistics"
    BUFFERS = "DDP's buffers"
    PARAMETERS = "parameters of a sharded optimizer"
    RESULT = "results and metrics"
    BARRIER = "barriers"
    OTHER = "other communication"


GRADIENT_BYTES = 64 << 10
"""All-reduces after a backward pass carry gradients if together they are as large: metrics are smaller (our choice)."""

ALIKE = 0.05  # Sizes differ by no more where both are of all parameters, but for padding (our choice).

_FSDP = re.compile(r"FSDP::(?!forward\Z)|FullyShardedDataParallel\.(?!forward\Z)")
_NORM = re.compile("sync_?batch_?norm", re.IGNORECASE)
_SPLIT_MODEL = re.compile(r"(^|_)(tp|cp)\Z|TENSOR|CONTEXT_PARALLEL")
"""Descriptions of groups: of DeviceMesh and torchtitan (mesh_tp, mesh_cp) and of Megatron."""
_HOOKED = (BACKWARD, "torch::autograd::AccumulateGrad")
"""Ops right inside which hooks of gradients run; what a backward op itself starts is in an op of its own besides."""


@fact
def roles(facts: Facts) -> npt.NDArray[np.object_]:
    """The role of each row of the table of collectives; of what is not told from the names of kernels, OTHER.

    Raises Missing like the table.
    """
    table = collective_table(facts)
    asked = asked_by(facts, table)
    at = _Place(facts, asked)
    plain = table.plain
    reduces, gathers = (np.char.startswith(plain, one) for one in ("allreduce", "allgather"))
    scatters, sends = np.char.startswith(plain, "reducescatter"), np.isin(plain, ("send", "recv", "coalesced"))
    hooked = at.is_hooked()
    loose = reduces & at.after_backward & ~at.in_backward & ~at.in_update
    sharded = bool((scatters | (plain == "reduce")).any()) or _as_large(
        table, gathers & at.after_update, hooked | loose
    )
    after_update = at.after_update & ~at.in_update & (gathers | reduces)
    split = _of_groups(table, _SPLIT_MODEL) | at.inside(lambda name: name.startswith("_c10d_functional::"))
    chosen: list[tuple[Role, Mask]] = [
        (Role.BARRIER, np.char.startswith(plain, "barrier") | at.inside(lambda name: "barrier" in name.lower())),
        (Role.NORM, at.inside(lambda name: bool(_NORM.search(name)))),
        (Role.STAGE, sends),
        (Role.SHARD_GATHER, gathers & at.inside(lambda name: bool(_FSDP.match(name)))),
        (Role.SHARD_REDUCE, (scatters | reduces) & at.inside(lambda name: bool(_FSDP.match(name)))),
        (Role.ACTIVATION, split),
        (Role.EXCHANGE, np.char.startswith(plain, "alltoall")),
        (Role.BUFFERS, np.char.startswith(plain, "broadcast") & at.inside(lambda name: name == DDP_FORWARD)),
        (Role.BUCKET, reduces & hooked & at.after(DDP_FORWARD)),
        (Role.GRADIENT, reduces & hooked),
        (Role.SHARD_REDUCE, scatters & (hooked | (at.after_backward & ~at.in_backward))),
        (Role.GRADIENT, loose & _large_together(table, loose, at.turn)),
        (Role.PARAMETERS, at.in_update & ~reduces & ~scatters),
        (Role.PARAMETERS, after_update & gathers & sharded),
        (Role.RESULT, after_update),
    ]
    numbers = np.select([mask for _, mask in chosen], np.arange(len(chosen)), -1)
    found: npt.NDArray[np.object_] = np.array([*(role for role, _ in chosen), Role.OTHER], dtype=object)[numbers]
    return found


def asked_by(facts: Facts, table: CollectiveTable) -> IntArray:
    """Span on a thread of the program that started each: a launching call, or the op of one on the host. Or -1."""
    work, found = device_work(facts), np.full(len(table.ids), intervals.NONE, dtype=np.int64)
    device = np.flatnonzero(~table.on_host)
    found[device] = work.launch[np.searchsorted(work.ids, table.ids[device])]
    if table.on_host.any():
        known = host_collectives(facts)
        row = dict(zip(known.ids.tolist(), known.op_ids.tolist(), strict=True))
        found[table.on_host] = [row.get(one, intervals.NONE) for one in table.ids[table.on_host].tolist()]
    return found


def _of_groups(table: CollectiveTable, named: re.Pattern[str]) -> Mask:
    texts, row = np.unique(table.group_description.astype(str), return_inverse=True)
    return np.array([bool(named.search(text)) for text in texts], dtype=bool)[row.ravel()]


def _large_together(table: CollectiveTable, chosen: Mask, turn: IntArray) -> Mask:
    """Which of them are of a turn in which they carry GRADIENT_BYTES; of unknown size none are."""
    total = np.bincount(
        turn[chosen], weights=np.maximum(table.bytes, 0)[chosen], minlength=int(turn.max(initial=0)) + 1
    )
    return chosen & (total[turn] >= GRADIENT_BYTES)


def _as_large(table: CollectiveTable, gathered: Mask, reduced: Mask) -> bool:
    """Whether as much is gathered as is reduced, or half or twice as much: parameters and gradients of some bytes."""
    total, of_gradients = (int(np.maximum(table.bytes, 0)[some].sum()) for some in (gathered, reduced))
    return any(abs(total - times * of_gradients) < ALIKE * total for times in (0.5, 1.0, 2.0))


class _Place:
    """Where in the program collectives are started. Masks of shape (collectives,)."""

    def __init__(self, facts: Facts, asked: IntArray) -> None:
        spans, self._facts, self._known = facts.rank.spans, facts, asked >= 0
        self._start = spans["start_ns"].to_numpy()[np.maximum(asked, 0)]
        self._track = spans["track"].to_numpy()[np.maximum(asked, 0)].astype(np.int64)
        back = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
        update = host_spans(facts, SpanKind.ANNOTATION, named=_is_update)
        ops = facts.rank.ops
        forward = ops.index[(ops["sequence"] >= 0).to_numpy() & (ops["forward_thread"] <= 0).to_numpy()].to_numpy()
        self.in_backward, self.in_update = self._in(back), self._in(update)
        last_back, last_update = self._last(back.end_ns), self._last(updates(facts).end_ns)
        last_forward = self._last(spans["start_ns"].to_numpy()[forward])
        self.after_backward = self._known & (last_back > np.maximum(last_update, last_forward))
        self.after_update = self._known & (last_update > np.maximum(last_back, last_forward))
        self.turn = np.searchsorted(np.sort(updates(facts).end_ns), self._start, side="right")

    def inside(self, named: Callable[[str], bool]) -> Mask:
        """Whether an op or a range of such a name is open, on the same thread."""
        return self._in(host_spans(self._facts, SpanKind.OP, SpanKind.ANNOTATION, SpanKind.COLLECTIVE, named=named))

    def after(self, name: str) -> Mask:
        """Whether a range of this name began before."""
        begun = host_spans(self._facts, SpanKind.ANNOTATION, named=lambda one: one == name).start_ns
        return self._known & (self._last(begun) >= 0)

    def is_hooked(self) -> Mask:
        """Whether a hook of a gradient is what starts them: the innermost op is of the backward pass."""
        ops = host_spans(self._facts, SpanKind.OP)
        found = intervals.innermost_at(self._start, self._track, ops.track, ops.start_ns, ops.end_ns)
        inner = np.where(found >= 0, np.append(ops.ids, 0)[found], 0)
        names = self._facts.rank.spans["name"].iloc[inner].astype(str).to_numpy().astype(str)
        begins = np.logical_or.reduce([np.char.startswith(names, one) for one in _HOOKED])
        hooked: Mask = self._known & (found >= 0) & begins
        return hooked

    def _in(self, some: HostSpans) -> Mask:
        found = intervals.innermost_at(self._start, self._track, some.track, some.start_ns, some.end_ns)
        return self._known & (found >= 0)

    def _last(self, moments_ns: IntArray) -> IntArray:
        order = np.concatenate(([-1], np.sort(moments_ns)))
        return order[np.searchsorted(order, self._start, side="right") - 1]


def _is_update(name: str) -> bool:
    return kinds.activity(name) is kinds.Activity.OPTIMIZER_STEP


_RANK = re.compile(r"\d+")


def share_a_machine(facts: Facts, group_ranks: str, group_size: int) -> bool | None:
    """Whether all ranks of a group do; None if that is not known.

    Told by the other ranks' recordings, else by how many ranks (diagnose profile) or devices (Kineto) a machine has:
    ranks are numbered machine by machine, as torchrun does. `group_ranks` as recorded, "" unknown.
    """
    ranks = _ranks(facts, group_ranks, group_size)
    told = _recorded(facts, ranks)
    if told is not None:
        return told
    each, known = _ranks_of_a_machine(facts)
    if each < 2 and not known:
        return None  # One device is seen where each process is shown its own, and on machines that have no other.
    if ranks is not None:
        return len({rank // each for rank in ranks}) == 1
    return False if group_size > each else True if 0 < _world(facts) <= each else None


def ranks_of_a_machine(facts: Facts) -> int | None:
    """How many ranks each machine has, the fewest of them; None if that is not known."""
    others = optional(peers, facts)
    if others is not None and (others.machines >= 0).all() and len(others.ranks) == max(_world(facts), 1):
        return int(np.unique(others.machines, return_counts=True)[1].min())
    each, known = _ranks_of_a_machine(facts)
    return each if known or each > 1 else None


def _ranks_of_a_machine(facts: Facts) -> tuple[int, bool]:
    noted = facts.rank.context.rank.peers if facts.rank.context else None
    return (noted, True) if noted else (facts.rank.provenance.machine_devices, False)


def ranks_together(facts: Facts, told: IntArray) -> int:
    """The fewest ranks of some collectives' groups, by the sizes that were recorded (-1 unknown): experts have fewer.

    Else of the only groups there are, else of the job. Raises Missing if that is not known.
    """
    if len(told) and (told > 0).all():
        return int(told.min())
    groups = {len(group.ranks) for group in facts.rank.provenance.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return groups.pop()
    if groups or not _world(facts):
        raise Missing("how many ranks communicate together", "Record with PyTorch 2.2 or newer and NCCL.")
    return _world(facts)


def _ranks(facts: Facts, group_ranks: str, group_size: int) -> list[int] | None:
    """None unknown: also of lists that were cut."""
    found = [int(one) for one in _RANK.findall(group_ranks)]
    if len(found) == group_size:
        return found
    return list(range(group_size)) if group_size == _world(facts) else None


def _world(facts: Facts) -> int:
    context = facts.rank.context
    return (context.rank.world_size if context else 0) or facts.rank.provenance.world_size or 0


def _recorded(facts: Facts, ranks: list[int] | None) -> bool | None:
    """What the recordings of these ranks tell: the names of machines, else devices that several would compute on."""
    others = optional(peers, facts)
    if others is None or ranks is None or not set(ranks) <= set(others.ranks):
        return None
    at = np.searchsorted(others.ranks, ranks)
    machines, devices = others.machines[at], others.devices[at]
    if (machines >= 0).all():
        return len(set(machines.tolist())) == 1
    shared = len(set(devices.tolist())) < len(ranks) and (devices >= 0).all()
    return False if shared and facts.rank.provenance.machine_devices > 1 else None
