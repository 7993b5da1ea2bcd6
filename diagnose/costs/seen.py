"""What ops of a kind reach in this very recording, against what is known of its device."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec import Struct

from diagnose.costs.changes import Mask
from diagnose.costs.known import Family, Grade, Known, known
from diagnose.costs.ops import FAMILIES, GRADES, Products, costed_ops, grades_in
from diagnose.facts.core.base import Facts, fact, optional
from diagnose.facts.core.matmuls import peaks
from diagnose.trace.costs import DTYPES
from diagnose.trace.hardware import Peaks

FEWEST = 3  # Calls that tell a rate (our choice).
LONG_NS = 20_000  # Shorter ones tell little of it (our choice).
LEAST, MOST = 0.5, 2.0  # Of what is known; beyond, something else is at work (our choice).
SPREAD = 0.05  # Of what is said, at least, as a range (our choice).

Kind = tuple[Family, str, Grade]


class Seen(Struct, frozen=True):
    """Of kinds of ops in the used steps, what they take over what is known of them."""

    taken: dict[Kind, tuple[float, float, float]]  # At 10 %, half and 90 % of their time.

    def known(self, device: Peaks, family: Family, dtype: str, grade: Grade) -> Known | None:
        """As `known`, by what was seen of the kind, where that was."""
        one, seen = known(device, family, dtype, grade), self.taken.get((family, dtype, grade))
        if one is None or seen is None:
            return one
        low, median, high = seen
        return msgspec.structs.replace(
            one, share=one.share / median, least=min(low / median, 1 - SPREAD), most=max(high / median, 1 + SPREAD)
        )


@fact
def seen(facts: Facts) -> Seen:
    """What was seen; nothing if the device's rates, or flops, are not known. Raises Missing without device work."""
    device, products = optional(peaks, facts), costed_ops(facts).products
    return Seen({}) if device is None else seen_in(products, device, products.table.in_steps)


def seen_in(products: Products, device: Peaks, rows: Mask) -> Seen:
    """What some rows tell."""
    table, taken = products.table, dict[Kind, tuple[float, float, float]]()
    tells = rows & table.exact & ~np.isnan(products.flops) & (products.dtype >= 0)
    tells &= (products.family == FAMILIES.index(Family.PRODUCT)) & (table.dur_ns >= LONG_NS)
    grade = grades_in(products, products.dtype)
    kinds = np.stack((products.dtype, grade))
    for dtype, code in np.unique(kinds[:, tells], axis=1).T.tolist():
        mine = np.flatnonzero(tells & (kinds == [[dtype], [code]]).all(axis=0))
        kind = (Family.PRODUCT, DTYPES[dtype], GRADES[code])
        one = known(device, *kind)
        if one is None or len(mine) < FEWEST:
            continue
        took_ns = table.dur_ns[mine].astype(np.float64)
        ratio = took_ns / one.took_ns(device, products.flops[mine], products.bytes[mine])
        order = np.argsort(ratio)
        passed = np.cumsum(took_ns[order]) / took_ns.sum()
        low, median, high = (float(ratio[order][np.searchsorted(passed, at)]) for at in (0.1, 0.5, 0.9))
        if LEAST <= median <= MOST:
            taken[kind] = low, median, high
    return Seen(taken)
