"""What counts as matrix work, and what the device could do of it at most."""

from __future__ import annotations

from diagnose.facts.core.base import Facts, Missing, fact, optional
from diagnose.trace import gpu_families, hardware
from diagnose.trace.hardware import Peaks
from diagnose.trace.kinds import KernelKind

MATMULS = (KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.TRITON_TEMPLATE)

SHORTEST_NS = 2_000  # The shortest useful kernel.


@fact
def peaks(facts: Facts) -> Peaks:
    """The peak rates of the device that did the work. Raises Missing if it is not known, or there are several kinds."""
    devices = facts.rank.provenance.devices
    known = {hardware.peaks(device) for device in devices}
    found = known.pop() if len(known) == 1 else None
    if found is None:
        name = devices[0].name if devices else "not recorded"
        how = "diagnose does not know this GPU." if devices else "Record with a current PyTorch."
        raise Missing(f"peak rates of the GPU ({name})", how)
    return found


@fact
def type_rates(facts: Facts) -> Peaks:
    """The peak rates, or else those of the device's family: how types compare. Raises Missing like `peaks`."""
    devices = facts.rank.provenance.devices
    known = optional(peaks, facts)
    if known is not None or len({(device.name, device.multiprocessors) for device in devices}) > 1:
        return peaks(facts)
    names = map(str, facts.rank.spans["name"].cat.categories)
    return gpu_families.estimated(next(iter(devices), None), names) or peaks(facts)
