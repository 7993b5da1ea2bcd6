"""What must hold in any trace, whatever file it came from. A broken law is a bug in a reader."""

from collections.abc import Iterator

import numpy as np

from diagnose.trace import enums
from diagnose.trace.enums import LinkKind, SpanKind
from diagnose.trace.model import Rank

_OF_KIND = {
    "kernels": (SpanKind.KERNEL,),
    "copies": (SpanKind.MEMCPY,),
    "syncs": (SpanKind.SYNC,),
    "ops": (SpanKind.OP, SpanKind.COLLECTIVE, SpanKind.LOADER, SpanKind.ANNOTATION),
    "collectives": (SpanKind.KERNEL, SpanKind.OP, SpanKind.COLLECTIVE),
    "memory": (SpanKind.MEMORY,),
}
_CALLS = (SpanKind.RUNTIME, SpanKind.DRIVER)
_WORK = (SpanKind.KERNEL, SpanKind.MEMCPY, SpanKind.MEMSET)
_ON_DEVICE = (*_WORK, SpanKind.SYNC, SpanKind.GPU_ANNOTATION)


def broken(rank: Rank) -> tuple[str, ...]:
    """The laws that the rank breaks, as sentences; empty for a sound one."""
    return (*_spans(rank), *_side_tables(rank), *_links(rank), *_steps(rank))


def _spans(rank: Rank) -> Iterator[str]:
    spans = rank.spans
    start = spans["start_ns"].to_numpy()
    if list(spans.index) != list(range(len(spans))):
        yield "span ids are not 0, 1, 2, ..."
    if (np.diff(start) < 0).any():
        yield "spans are not in order of start"
    if len(start) and start[0] != 0:
        yield "the first span does not start at 0"
    if (spans["dur_ns"] < 0).any():
        yield "a duration is negative"
    if not spans["track"].between(0, len(rank.tracks) - 1).all():
        yield "a span lies on no track"
    elif ((rank.tracks["device"].to_numpy()[spans["track"]] >= 0) != _is(rank, _ON_DEVICE)).any():
        yield "device work lies on a host thread, or the reverse"


def _side_tables(rank: Rank) -> Iterator[str]:
    codes = rank.spans["kind"].cat.codes.to_numpy()
    for name, kinds in _OF_KIND.items():
        index = getattr(rank, name).index
        if not index.is_unique or not index.isin(rank.spans.index).all():
            yield f"{name} describes a span twice, or one that is not there"
        elif not np.isin(codes[index], [enums.code(kind) for kind in kinds]).all():
            yield f"{name} describes a span of another kind"
    if len(rank.kernels) != _is(rank, (SpanKind.KERNEL,)).sum():
        yield "a kernel is not described"


def _links(rank: Rank) -> Iterator[str]:
    launch = rank.links[rank.links["kind"] == LinkKind.LAUNCH.value]
    if not rank.links[["from_id", "to_id"]].isin(rank.spans.index).all(axis=None):
        yield "a link ends nowhere"
    elif not _is(rank, _CALLS)[launch["from_id"]].all() or not _is(rank, _WORK)[launch["to_id"]].all():
        yield "a launch does not lead from a call to device work"
    if not launch["to_id"].is_unique:
        yield "device work was launched twice"


def _steps(rank: Rank) -> Iterator[str]:
    if not rank.spans["step"].between(-1, len(rank.steps) - 1).all():
        yield "a span belongs to no recorded step"
    bounds = [moment for step in rank.steps for moment in (step.start_ns, step.end_ns)]
    if bounds != sorted(bounds):
        yield "steps overlap"


def _is(rank: Rank, kinds: tuple[SpanKind, ...]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.isin(rank.spans["kind"].cat.codes.to_numpy(), [enums.code(kind) for kind in kinds])
