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
from diagnose.facts.core.inputs import BACKWARD, DDP_FORWARD, Mask, named
from diagnose.facts.core.spans import HostSpans, host_spans, spans_of
from diagnose.facts.optimizer.optimizer import is_update, updates
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.intervals import IntArray


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
SYNCED_NORM = re.compile("sync_?batch_?norm", re.IGNORECASE)
_SPLIT_MODEL = re.compile(r"(^|_)(tp|cp)\Z|TENSOR|CONTEXT_PARALLEL")
"""Descriptions of groups: of DeviceMesh and torchtitan (mesh_tp, mesh_cp) and of Megatron."""
_HOOKED = (f"{BACKWARD}*", "torch::autograd::AccumulateGrad*")
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
    sharded = (scatters | (plain == "reduce")).any() or _as_large(table, gathers & at.after_update, hooked | loose)
    after_update = at.after_update & ~at.in_update & (gathers | reduces)
    split = at.inside(lambda name: name.startswith("_c10d_functional::"))
    split |= np.array([bool(_SPLIT_MODEL.search(text)) for text in table.group_description], dtype=bool)
    in_fsdp = at.inside(lambda name: bool(_FSDP.match(name)))
    chosen: list[tuple[Role, Mask]] = [
        (Role.BARRIER, np.char.startswith(plain, "barrier") | at.inside(lambda name: "barrier" in name.lower())),
        (Role.NORM, at.inside(lambda name: bool(SYNCED_NORM.search(name)))),
        (Role.STAGE, sends),
        (Role.SHARD_GATHER, gathers & in_fsdp),
        (Role.SHARD_REDUCE, (scatters | reduces) & in_fsdp),
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
    return np.array([*(role for role, _ in chosen), Role.OTHER], dtype=object)[numbers]


def of_roles(facts: Facts, *wanted: Role) -> Mask:
    """Which rows of the table of collectives have one of these roles. Raises Missing like it."""
    return np.array([role in wanted for role in roles(facts)], dtype=bool)


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


def _large_together(table: CollectiveTable, chosen: Mask, turn: IntArray) -> Mask:
    """Which chosen ones are in a turn whose chosen ones have GRADIENT_BYTES together; unknown sizes count as 0."""
    return chosen & (np.bincount(turn, np.maximum(table.bytes, 0) * chosen)[turn] >= GRADIENT_BYTES)


def _as_large(table: CollectiveTable, gathered: Mask, reduced: Mask) -> bool:
    """Whether gathered bytes are 0.5, 1 or 2 times the reduced bytes, as parameters and gradients of some types are."""
    total, of_gradients = (int(np.maximum(table.bytes, 0)[some].sum()) for some in (gathered, reduced))
    return any(abs(total - times * of_gradients) < ALIKE * total for times in (0.5, 1.0, 2.0))


class _Place:
    """Where in the program collectives are started. Masks of shape (collectives,)."""

    def __init__(self, facts: Facts, asked: IntArray) -> None:
        """`asked` are the ids of the host spans that start the collectives; -1 if unknown."""
        self._facts, self._known = facts, asked >= 0
        self._asked = spans_of(facts, np.maximum(asked, 0))
        backward = host_spans(facts, SpanKind.OP, named=lambda name: name.startswith(BACKWARD))
        ops, update_end_ns = facts.rank.ops, updates(facts).end_ns
        forward = ops.index[(ops["sequence"] >= 0).to_numpy() & (ops["forward_thread"] <= 0).to_numpy()].to_numpy()
        self.in_backward = self._in(backward)
        self.in_update = self._in(host_spans(facts, SpanKind.ANNOTATION, named=is_update))
        last_back, last_update = self._last(backward.end_ns), self._last(update_end_ns)
        last_forward = self._last(facts.rank.spans["start_ns"].to_numpy()[forward])
        self.after_backward = self._known & (last_back > np.maximum(last_update, last_forward))
        self.after_update = self._known & (last_update > np.maximum(last_back, last_forward))
        self.turn = np.searchsorted(np.sort(update_end_ns), self._asked.start_ns, side="right")

    def inside(self, named: Callable[[str], bool]) -> Mask:
        """Whether an op or a range of such a name is open on the same thread when each is started."""
        return self._in(host_spans(self._facts, SpanKind.OP, SpanKind.ANNOTATION, SpanKind.COLLECTIVE, named=named))

    def after(self, name: str) -> Mask:
        """Whether a range of this name, open or not, on any thread, began before each is started."""
        begun = host_spans(self._facts, SpanKind.ANNOTATION, named=lambda one: one == name).start_ns
        return self._known & (self._last(begun) >= 0)

    def is_hooked(self) -> Mask:
        """Whether a hook of a gradient is what starts them: the innermost op is of the backward pass."""
        ops = host_spans(self._facts, SpanKind.OP)
        inner = np.append(ops.ids, intervals.NONE)[ops.around(self._asked)]
        return self._known & named(self._facts, inner, *_HOOKED)

    def _in(self, some: HostSpans) -> Mask:
        return self._known & (some.around(self._asked) >= 0)

    def _last(self, moments_ns: IntArray) -> IntArray:
        """The last of these moments at or before each is started, or -1."""
        order = np.concatenate(([-1], np.sort(moments_ns)))
        return order[np.searchsorted(order, self._asked.start_ns, side="right") - 1]


def share_a_machine(facts: Facts, group_ranks: str, group_size: int) -> bool | None:
    """Whether all ranks of a group share a machine; None if that is not known.

    Told by the other ranks' recordings, else by how many ranks (diagnose profile) or devices (Kineto) a machine has:
    ranks are numbered machine by machine, as torchrun does. `group_ranks` as recorded, "" unknown.
    """
    ranks = _ranks(facts, group_ranks, group_size)
    recorded = _share_by_recordings(facts, ranks)
    if recorded is not None:
        return recorded
    machine_ranks, known = _ranks_of_a_machine(facts)
    if machine_ranks < 2 and not known:
        return None  # One device is seen where each process is shown its own, and on machines that have no other.
    if ranks is not None:
        return len({rank // machine_ranks for rank in ranks}) == 1
    return False if group_size > machine_ranks else True if 0 < _world(facts) <= machine_ranks else None


def ranks_of_a_machine(facts: Facts) -> int | None:
    """How many ranks the machine with the fewest has; None if that is not known."""
    others = optional(peers, facts)
    if others is not None and (others.machines >= 0).all() and len(others.ranks) == max(_world(facts), 1):
        return int(np.unique(others.machines, return_counts=True)[1].min())
    each, known = _ranks_of_a_machine(facts)
    return each if known or each > 1 else None


def _ranks_of_a_machine(facts: Facts) -> tuple[int, bool]:
    """(ranks of a machine by the manifest, True), else (devices of this machine by the trace, False)."""
    noted = facts.rank.context.rank.peers if facts.rank.context else None
    return (noted, True) if noted else (facts.rank.provenance.machine_devices, False)


def ranks_together(facts: Facts, group_sizes: IntArray) -> int:
    """The fewest ranks of some collectives' groups, by the sizes that were recorded (-1 unknown): experts have fewer.

    Else the size of all known groups, if it is one, or that of the job, if none is known. Raises Missing if it is not.
    """
    if len(group_sizes) and (group_sizes > 0).all():
        return int(group_sizes.min())
    groups = {len(group.ranks) for group in facts.rank.provenance.groups if len(group.ranks) > 1}
    if len(groups) == 1:
        return groups.pop()
    if groups or not _world(facts):
        raise Missing("how many ranks communicate together", "Record with PyTorch 2.2 or newer and NCCL.")
    return _world(facts)


def _ranks(facts: Facts, group_ranks: str, group_size: int) -> list[int] | None:
    """The ranks of a group from its recorded text; None if the text was cut or is missing, unless it is all ranks."""
    found = [int(one) for one in re.findall(r"\d+", group_ranks)]
    if len(found) == group_size:
        return found
    return list(range(group_size)) if group_size == _world(facts) else None


def _world(facts: Facts) -> int:
    context = facts.rank.context
    return (context.rank.world_size if context else 0) or facts.rank.provenance.world_size or 0


def _share_by_recordings(facts: Facts, ranks: list[int] | None) -> bool | None:
    """Whether these ranks share a machine, by machine names or devices in their recordings; None if unknown."""
    job_peers = optional(peers, facts)
    if job_peers is None or ranks is None or not set(ranks) <= set(job_peers.ranks):
        return None
    rows = np.searchsorted(job_peers.ranks, ranks)
    machines, devices = job_peers.machines[rows], job_peers.devices[rows]
    if (machines >= 0).all():
        return len(set(machines.tolist())) == 1
    shared = len(set(devices.tolist())) < len(ranks) and (devices >= 0).all()
    return False if shared and facts.rank.provenance.machine_devices > 1 else None
