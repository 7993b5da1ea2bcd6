"""Which functions of the user's code does the step's time go to, with what their ops cost in the backward pass?

It needs no rule: it also shows what no rule knows. What dominates a step is a finding.
"""

import numpy as np
from msgspec import Struct

from diagnose.facts.autograd.backward import BackwardNodes, backward_nodes, forward_ops, nodes_of
from diagnose.facts.core.base import Facts, fact, once, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.device import device_work, host_recorded
from diagnose.facts.core.host import host_threads
from diagnose.facts.core.inputs import BACKWARD, Mask, Tensor, Work, inputs_of, work_of
from diagnose.facts.core.seen_ops import inside, seen_ops
from diagnose.facts.core.spans import (
    HostSpans,
    cut_at_frames,
    host_spans,
    in_used_steps,
    launched_in,
    members,
    on_training_threads,
    sites_at,
)
from diagnose.facts.core.steps import host_window, steps
from diagnose.facts.host.loops import LAYERS
from diagnose.facts.optimizer.optimizer import updates, zeroings
from diagnose.trace import intervals
from diagnose.trace.enums import SpanKind
from diagnose.trace.frames import Site
from diagnose.trace.intervals import IntArray

_CALLS = (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.RUNTIME, SpanKind.DRIVER)

MUCH = 0.2  # Of the step, from which on a line or a function dominates it (our choice).
MOSTLY = 0.5  # Of a line in one op, and of a function in one line, for these to be named (our choice).

_NAMES = ("mm", "bmm", "matmul", "einsum", "dropout", "relu", "gelu", "silu", "elu", "tanh", "sigmoid", "softmax")
_ANYONES = tuple(f"aten::{name}" for name in (*_NAMES, "log_softmax", "max_pool", "avg_pool", "cross_entropy"))
"""What layers compute, and others too. Taken for a layer's where a backward pass goes through it."""

_LIBRARIES = ("aten::", "torchvision::", "torchaudio::")  # Their ops are no kernels of the model's author.

MOST_OPS = 5  # That are told of a function (our choice).


class FunctionOp(Struct, frozen=True):
    """All calls of an op from one function, with its backward pass."""

    name: str  # Of a node of a backward pass whose op is not known, the node's.
    ns: int  # Per step; on the device if there is one, else on the host.


class FunctionTime(Struct, frozen=True):
    """Time of the step that is of a function of the user's code, and of none that it calls. All times are per step."""

    site: Site | None  # None: no frame of the user's code was open.
    python_ns: int  # Between ops on the training threads, fetching data and waiting in the operating system included.
    ops_ns: int  # In ops that it calls, and in calls of the runtime outside them; waiting inside them included.
    backward_ns: int  # In backward nodes of those ops; other nodes count for whoever started the pass.
    device_ns: int | None  # Kernels, copies and memsets that all these launched, added up; None without device work.
    longest_ops: tuple[FunctionOp, ...]  # What takes the most of that, longest first, up to MOST_OPS.

    @property
    def host_ns(self) -> int:
        """On the training threads, added up."""
        return self.python_ns + self.ops_ns + self.backward_ns


class _Spent(Struct, frozen=True):
    """Outermost calls of training threads, and pauses of the main one, each with the line that its time counts to."""

    sites: tuple[Site | None, ...]  # Distinct lines; None: no line is known.
    calls: HostSpans  # Of the whole recording.
    of_call: IntArray  # Position in `sites`; of a node of a backward pass, that of the call that made it.
    maker: IntArray  # Position of the call that made a node; of all others their own.
    is_node: Mask
    pauses: intervals.Intervals  # Of the main thread, in the used steps.
    in_pause: IntArray  # Position in `sites` of each pause.

    @property
    def goes_back(self) -> Mask:
        """Which calls are nodes, or have made one."""
        return np.isin(self.maker, self.maker[self.is_node])


@once
def _spent(facts: Facts) -> _Spent:
    """The calls and pauses with their lines. Raises Missing without call stacks."""
    main, (begin, end) = host_threads(facts).main, host_window(facts)
    calls = on_training_threads(facts, host_spans(facts, *_CALLS)).outermost()
    unknown = host_recorded(facts).missing_in(begin, end)
    pauses = cut_at_frames(facts, intervals.subtract(intervals.gaps(calls.times, begin, end), unknown), main)
    sites: dict[Site | None, int] = {}
    in_pause = _numbered(sites, sites_at(facts, pauses.starts, np.full(pauses.size, main)))
    nodes = optional(backward_nodes, facts)
    maker = np.arange(len(calls.ids)) if nodes is None else _makers(facts, calls, nodes)
    of_call = _numbered(sites, sites_at(facts, calls.start_ns, calls.track))[maker]
    is_node = np.isin(calls.ids, nodes.spans.ids if nodes else [])
    return _Spent(tuple(sites), calls, of_call, maker, is_node, pauses, in_pause)


@fact
def functions(facts: Facts) -> tuple[FunctionTime, ...]:
    """Functions by their time on the host or the device, whichever is longer. Raises Missing without call stacks.

    Times are of what the host did in the used steps, and of what that launched, whenever it ran on the device. So those
    on the host add up to the step as the host saw it, if one thread trains.
    """
    count, names, spent = steps(facts).count, facts.rank.spans["name"].cat, _spent(facts)
    calls, pauses, maker, sites = spent.calls, spent.pauses, spent.maker, spent.sites
    of_call, is_node = spent.of_call, spent.is_node
    used, lasted, on_device = in_used_steps(facts, calls.ids), calls.end_ns - calls.start_ns, _device_ns(facts, calls)

    def total(number: IntArray, ns: IntArray) -> list[int]:  # ns per step of each site.
        found = np.zeros(len(sites), dtype=np.int64)
        np.add.at(found, number, ns)
        return [round_half_up(one, count) for one in found.tolist()]

    python = total(spent.in_pause, pauses.ends - pauses.starts)
    ops, backward = (total(of_call[rows], lasted[rows]) for rows in (used & ~is_node, used & is_node))
    device = None if on_device is None else total(of_call[used], on_device[used])
    codes = names.codes.to_numpy()[calls.ids[maker]].astype(np.int64)
    longest = _longest(of_call[used], codes[used], (lasted if on_device is None else on_device)[used])
    found = [
        FunctionTime(
            site=site,
            python_ns=python[k],
            ops_ns=ops[k],
            backward_ns=backward[k],
            device_ns=None if device is None else device[k],
            longest_ops=tuple(
                FunctionOp(str(names.categories[code]).removeprefix(f"{BACKWARD}: "), round_half_up(ns, count))
                for code, ns in longest.get(k, ())
            ),
        )
        for k, site in enumerate(sites)
        if k in longest or python[k]
    ]
    return tuple(sorted(found, key=lambda one: (-max(one.host_ns, one.device_ns or 0), repr(one.site))))


def _numbered(numbers: dict[Site | None, int], sites: list[Site | None]) -> IntArray:
    """The number of each site in `numbers`, to which new ones are added. Equal sites are mostly one object."""
    by_identity = {id(site): site for site in sites}
    known = {one: numbers.setdefault(site, len(numbers)) for one, site in by_identity.items()}
    return np.array([known[id(site)] for site in sites], dtype=np.int64)


def _longest(site: IntArray, op: IntArray, ns: IntArray) -> dict[int, list[tuple[int, int]]]:
    """By site, its MOST_OPS longest ops at most, as (op, ns), longest first; none that takes nothing."""
    pairs, position = np.unique(np.stack((site, op)), axis=1, return_inverse=True)
    taken = np.zeros(pairs.shape[1], dtype=np.int64)
    np.add.at(taken, position.reshape(-1), ns)
    found: dict[int, list[tuple[int, int]]] = {int(one): [] for one in np.unique(site)}
    for k in np.argsort(-taken, kind="stable").tolist():
        if taken[k] and len(found[int(pairs[0, k])]) < MOST_OPS:
            found[int(pairs[0, k])].append((int(pairs[1, k]), int(taken[k])))
    return found


def _makers(facts: Facts, calls: HostSpans, nodes: BackwardNodes) -> IntArray:
    """For each call its own position; for a node of a backward pass that of the op that made it, where it is known."""
    found, (ops, _) = np.arange(len(calls.ids)), forward_ops(facts)
    op, node = nodes_of(facts, ops)
    made, known = _positions(calls, ops.ids[op]), _positions(calls, nodes.spans.ids[node])
    both = (made >= 0) & (known >= 0)
    found[known[both]] = made[both]
    return found


def _positions(calls: HostSpans, ids: IntArray) -> IntArray:
    at = np.searchsorted(calls.ids, ids)
    return np.where(np.append(calls.ids, -1)[at] == ids, at, -1)


def _device_ns(facts: Facts, calls: HostSpans) -> IntArray | None:
    """Device ns of what each call launches; None without device work."""
    work = device_work(facts)
    if not len(work.ids):
        return None
    call, ns_of_call = launched_in(facts, calls), np.zeros(len(calls.ids), dtype=np.int64)
    np.add.at(ns_of_call, call[call >= 0], (work.end_ns - work.start_ns)[call >= 0])
    return ns_of_call


class Dominant(Struct, frozen=True):
    """A line, or all lines of a function, whose ops with their backward pass take much of the step."""

    site: Site  # Of a function that line which takes most.
    whole: bool  # It is a function, no line of which takes MOSTLY of it.
    ns: int  # Per step: of the device if there is one, else of the host.
    share: float  # The same over the step.
    op: str  # What takes most of it.
    op_ns: int  # Per step.
    calls: float  # Of that op, per step.
    takes: tuple[Tensor, ...]  # What its longest call takes; none if that was not recorded.
    repeats: bool  # What the op makes is known to look as it did in the step before.
    work: Work


@fact
def dominant_lines(facts: Facts) -> tuple[Dominant, ...]:
    """Those with most time first, without what layers, optimizers and loaders do. Raises Missing without call stacks.

    Of a function as a whole only what nothing goes back through: the rest is the model.
    """
    spent, counted, functions_of = _spent(facts), _counted(facts), dict[tuple[str, str], list[int]]()
    lines = members(np.where(counted, spent.of_call, len(spent.sites)), len(spent.sites) + 1)
    for k, site in enumerate(spent.sites):
        if site is not None and site.line:
            functions_of.setdefault((site.file, site.function), []).append(k)
    found = list[Dominant | None]()
    for some in functions_of.values():
        of_line = [_dominant(facts, spent.sites[k], lines[k]) for k in some]
        every = np.concatenate([lines[k] for k in some])
        most = max(some, key=lambda k: _ns(facts)[lines[k]].sum())
        alone = every[~spent.goes_back[every]]
        if _ns(facts)[lines[most]].sum() < MOSTLY * _ns(facts)[alone].sum():
            of_line = [_dominant(facts, spent.sites[most], alone, whole=True)]
        found += of_line
    return tuple(sorted((one for one in found if one), key=lambda one: -one.ns))


@once
def _ns(facts: Facts) -> IntArray:
    """ns of each call in used steps: on the device if there is one, else on the host."""
    calls, on_device = _spent(facts).calls, _device_ns(facts, _spent(facts).calls)
    return np.where(
        in_used_steps(facts, calls.ids), calls.end_ns - calls.start_ns if on_device is None else on_device, 0
    )


def _counted(facts: Facts) -> Mask:
    """Which calls may make a line dominant: the user's ops, and the backward nodes that these made.

    Not those of layers, optimizers (but the user's own), zeroing and loading. What anyone's code calls (`_ANYONES`)
    counts only where no backward pass goes through it.
    """
    spent, names = _spent(facts), facts.rank.spans["name"].cat
    made_by = names.codes.to_numpy()[spent.calls.ids[spent.maker]]
    is_op, layer, anyones = (
        np.array([decides(name) for name in names.categories], dtype=bool)[made_by]
        for decides in (_is_op, _is_of_layer, lambda name: name.startswith(_ANYONES))
    )
    others = (updates(facts), zeroings(facts), host_spans(facts, SpanKind.LOADER))
    times = intervals.Intervals(spent.calls.start_ns, spent.calls.end_ns)
    apart = intervals.covered(times, intervals.merge(*(one.times for one in others))) > 0
    apart &= ~_of_own_optimizer(facts)
    unknown = spent.is_node & (spent.maker == np.arange(len(apart)))
    counted: Mask = is_op & ~apart & ~unknown & ~np.where(anyones, spent.goes_back, layer)
    return counted


def _of_own_optimizer(facts: Facts) -> Mask:
    """Which calls within updates are of another function than the one that called the update: the user's optimizer."""
    spent, made = _spent(facts), updates(facts)
    held = intervals.innermost_at(spent.calls.start_ns, spent.calls.track, made.track, made.start_ns, made.end_ns)
    function = [site and (site.file, site.function) for site in spent.sites]
    asked = [site and (site.file, site.function) for site in sites_at(facts, made.start_ns, made.track)]
    inside = zip(held.tolist(), spent.of_call.tolist(), strict=True)
    return np.array(
        [k >= 0 and bool(asked[k]) and function[at] not in (asked[k], None) for k, at in inside], dtype=bool
    )


def _is_of_layer(name: str) -> bool:
    return name.startswith(LAYERS) or not name.startswith(_LIBRARIES)


def _is_op(name: str) -> bool:
    return "::" in name and not name.startswith((BACKWARD, "c10d::", "nccl:"))


def _dominant(facts: Facts, site: Site | None, mine: IntArray, whole: bool = False) -> Dominant | None:
    """The finding on these calls of a site; None if they take under MUCH of the step, or no op MOSTLY of a line."""
    spent, used, ns = _spent(facts), steps(facts), _ns(facts)
    made_by = facts.rank.spans["name"].cat.codes.to_numpy()[spent.calls.ids[spent.maker[mine]]]
    by_op, total = np.bincount(made_by, ns[mine], 1), int(ns[mine].sum())
    if site is None or total < MUCH * used.window_ns or by_op.max() < MOSTLY * total * (not whole):
        return None
    of_op = mine[(made_by == by_op.argmax()) & ~spent.is_node[mine]]
    called, seen = spent.calls.where(of_op), optional(seen_ops, facts)
    longest = called.ids[[(called.end_ns - called.start_ns).argmax()]]
    made = set[int]().union(*inside(facts, seen, called).values()) if seen else set[int]()
    return Dominant(
        site=site,
        whole=whole,
        ns=round_half_up(total, used.count),
        share=total / max(used.window_ns, 1),
        op=str(facts.rank.spans["name"].iloc[longest[0]]),
        op_ns=round_half_up(int(by_op.max()), used.count),
        calls=len(called.in_steps(facts).ids) / used.count,
        takes=tuple(tensor for some in inputs_of(facts, longest)[0] for tensor in some),
        repeats=bool(seen and seen.repeats is not None and made and seen.repeats[sorted(made)].all()),
        work=work_of(facts, spent.calls.ids[mine]),
    )
