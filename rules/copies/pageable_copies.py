"""Host-to-device copies come from pageable memory.

A copy from memory that is not pinned goes through a buffer of the driver.

Why it costs
    The copy is slower, and the thread that launches kernels waits for it.
How to fix
    Set `pin_memory=True` on the DataLoader, and copy with `non_blocking=True`. Do not call `.pin_memory()` before each
    copy: that takes longer.
Ignore when
    the copies are small, or hidden behind queued work.
Sources
    https://docs.pytorch.org/tutorials/intermediate/pinmem_nonblock.html
    https://docs.nvidia.com/cuda/cuda-runtime-api/api-sync-behavior.html
"""

from diagnose.facts.device.transfers import Transfer
from diagnose.facts.run.program import Language, Program
from diagnose.rulekit.vocabulary import *

LEAST_BYTES = 1_000_000  # a step: smaller copies cost their launch, not their bytes
WORTH_SHARE = 0.01  # of the step in which the GPU only copies or waits for the copying host (our choice)
CALL = Between(0.5, 0.1, 0.03)  # of the host's time: a copy from pinned memory is queued in a few us
NATIVE = Fix("Copy asynchronously from page-locked memory.")
REACH = Fix(
    "Give your batch type a pin_memory() method, or pin tensors that are created outside the DataLoader.",
    after="def pin_memory(self):  # of the batch type\n    self.x = self.x.pin_memory()\n    return self",
    effort=2,
    link="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
)


@rule("HD01")
def pageable_copies(
    transfers: tuple[Transfer, ...], steps: Steps, manifest: RankManifest | None = None, program: Program | None = None
) -> Verdicts:
    to_device = [transfer for transfer in transfers if transfer.direction is Direction.H2D]
    if to_device and all(one.host_memory is HostMemory.UNKNOWN for one in to_device):
        raise Missing("whether host memory is pinned", "Check DataLoader(pin_memory=...): this recorder omits it.")
    pageable = [one for one in to_device if one.host_memory is HostMemory.PAGEABLE]
    slow = [one for one in pageable if one.bytes is None or one.bytes >= LEAST_BYTES]
    costly = [one for one in slow if one.exposed_ns + one.call_idle_ns >= WORTH_SHARE * steps.mean_ns]
    if any(one.bytes is None for one in costly):
        raise Missing("sizes of copies", "Record with a current PyTorch: older ones on ROCm leave them out.")
    if not costly:
        yield Clean(f"copies from pageable memory leave the GPU idle {ms(sum(one.call_idle_ns for one in slow))}/step")
    fix, known = (NATIVE, "") if program and program.language is not Language.PYTHON else _fix(manifest)
    for one in costly:
        ns = one.exposed_ns + one.call_idle_ns
        idle = f"{ms(one.exposed_ns)} exposed copy, {ms(one.call_idle_ns)} GPU idle"
        copied = f"`{called(one.asked_by or 'cudaMemcpy')}` copies {bytes_(one.bytes or 0)}/step from pageable memory"
        yield Finding(
            evidence=(Evidence(f"{copied}: {idle}.", ns, "ns"), *([_rate(one)] if one.bandwidth_bytes_per_s else [])),
            edits=(Detach(one.sync_ids), Shorten(one.call_ids, CALL), Recost(one.ids, Pinned())),
            fixes=(fix,),
            confidence=Confidence(Level.HIGH, f"the kind of memory is recorded{known}"),
            site=one.site,
            host_bound=True,
        )


def _rate(one: Transfer) -> Evidence:
    rate = one.bandwidth_bytes_per_s or 0.0
    slow, fast = one.most_bytes_per_s or (rate, rate)
    most = f", 80 % of them {bytes_(round(slow))}/s to {bytes_(round(fast))}/s" if slow < fast else ""
    return Evidence(f"These copies reach {bytes_(round(rate))}/s{most}.", rate, "bytes/s")


def _fix(manifest: RankManifest | None) -> tuple[Fix, str]:
    loaders = manifest.loaders if manifest else ()
    if loaders and all(loader.pin_memory for loader in loaders):
        return REACH, ", and every DataLoader has pin_memory=True"
    do, known = "Set pin_memory=True on the DataLoader", ""
    most = max(loaders, key=lambda loader: (loader.asked, loader.batches), default=None)
    if most is not None and not most.pin_memory:
        do, known = f"Set pin_memory=True on the DataLoader of {most.dataset}", ", and that loader does not pin"
    fix = Fix.of(
        fixes.LoaderArgument("pin_memory", True),
        f"{do}, and copy with non_blocking=True.",
        after="DataLoader(..., pin_memory=True)\nx = x.to(device, non_blocking=True)",
    )
    return fix, known


EXAMPLES = [
    Fires("""
        4 steps of 100
        cpu  aten::to 0-20.05 | sync 15.1-20.03 | aten::mm 21-22 | sync 23-99.01
        gpu  h2d 0.1-20 @0.05-15 pageable 100MB | sgemm 21.1-99 @21.05
    """),
    # 1 KB
    Silent("""
        4 steps of 100
        cpu  aten::to 0-0.1 | sync 0.04-0.08 | aten::mm 1-2 | sync 3-99.01
        gpu  h2d 0.03-0.04 @0.01-0.03 pageable 1KB | sgemm 1.1-99 @1.05
    """),
    # pinned
    Silent("""
        4 steps of 100
        cpu  aten::to 0-0.1 | aten::mm 1-2 | sync 3-99.01
        gpu  h2d 0.1-4 @0.05 pinned 100MB | sgemm 4.1-99 @1.05
    """),
]
