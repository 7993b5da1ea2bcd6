"""Do convolutions run kernels that the library picked by its heuristics, where a search may find faster ones?"""

from __future__ import annotations

import re
from collections import Counter

import numpy as np
from msgspec import Struct

from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.breakdown import round_half_up
from diagnose.facts.core.inputs import Mask
from diagnose.facts.core.spans import used_step
from diagnose.facts.core.steps import steps
from diagnose.facts.core.work import KERNEL_KINDS
from diagnose.facts.device.roofline import MatmulOps, matmul_ops, op_roofline
from diagnose.trace.intervals import IntArray
from diagnose.trace.kinds import KernelKind

_GENERIC = re.compile(
    r"dgrad_engine|wgrad_alg\d_engine|[dw]grad2d_alg|implicit_convolve_sgemm|winograd_?non_?fused|fft[12]d_|gcgemm"
    r"|naive_conv",
    re.IGNORECASE,
)
"""Kernels of cuDNN for any size, by FFT or in several passes, and MIOpen's last resort. A search may keep them, too."""


class Convolutions(Struct, frozen=True):
    """Convolutions on the device. Times are per step."""

    ids: IntArray  # Their kernels.
    ns: int
    reached: float | None
    """Of what the device can do at best, the share that they reach, by their time; None if no cost is known."""
    generic_ns: int  # In kernels that suit any size.
    generic: tuple[str, ...]  # Names of these without arguments, longest first.
    fixed: bool | None
    """All used steps run the same kernels in the same grids: so sizes stay the same. None of a single step."""


@fact
def convolutions(facts: Facts) -> Convolutions:
    """Of the used steps; zeros without any. Raises Missing without device work."""
    ops = matmul_ops(facts)
    by_name = np.append(["conv" in name.lower() for name in ops.names], False)[ops.name].astype(bool)
    mine = by_name | (ops.kind == KERNEL_KINDS.index(KernelKind.CONV))
    ids = ops.work[mine[ops.row]]
    spans = facts.rank.spans
    step, dur = used_step(facts, ids), spans["dur_ns"].to_numpy()[ids]
    labels = spans["name"].cat.categories.tolist()
    names = [labels[code] for code in spans["name"].cat.codes.to_numpy()[ids].tolist()]
    taken = Counter[str]()
    generic = {name for name in {*names} if _GENERIC.search(name)}
    for name, at, ns in zip(names, step.tolist(), dur.tolist(), strict=True):
        if at >= 0 and name in generic:
            taken[name.partition("<")[0].removeprefix("void ")] += ns
    return Convolutions(
        ids=ids,
        ns=round_half_up(int(dur[step >= 0].sum()), steps(facts).count),
        reached=_reached(facts, ops, mine & ops.in_steps),
        generic_ns=round_half_up(sum(taken.values()), steps(facts).count),
        generic=tuple(name for name, _ in taken.most_common()),
        fixed=_fixed(facts, ids, names, step),
    )


def _reached(facts: Facts, ops: MatmulOps, rows: Mask) -> float | None:
    known = optional(op_roofline, facts)
    if known is None:
        return None
    reached, dur = known.achieved_share[rows], ops.dur_ns[rows].astype(np.float64)
    told = ~np.isnan(reached)
    return float((np.minimum(reached, 1.0) * dur)[told].sum() / dur[told].sum()) if dur[told].sum() else None


def _fixed(facts: Facts, ids: IntArray, names: list[str], step: IntArray) -> bool | None:
    grid = facts.rank.kernels[["grid_x", "grid_y", "grid_z"]].reindex(ids, fill_value=0).to_numpy().tolist()
    count = steps(facts).count
    ran = [Counter[tuple[str, tuple[int, ...]]]() for _ in range(count)]
    for name, blocks, at in zip(names, grid, step.tolist(), strict=True):
        if at >= 0:
            ran[at][name, tuple(blocks)] += 1
    return all(one == ran[0] for one in ran) if count > 1 else None
