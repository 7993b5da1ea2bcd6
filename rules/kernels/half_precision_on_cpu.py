"""16-bit products run on a CPU without units for them.

Autocast to bfloat16 or float16, or a model of that type, on a processor that only emulates the type.

Why it costs
    Each product converts what it takes and what it gives. Where the libraries have no kernel for the processor, they
    multiply number by number: 10 to 50 times as slow as in fp32.

How to fix
    Compute in fp32 on this machine. Processors with avx512_bf16, amx_bf16 or, of Arm, bf16 gain by 16 bits.

Ignore when
    the same script is only tried out here, and runs on another machine.

Sources
    https://github.com/pytorch/pytorch/issues/118499
    https://docs.pytorch.org/docs/stable/amp.html#cpu-op-specific-behavior
"""

from diagnose.facts.device.half_products import UNITS, HalfProducts
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such products (our choice)
SLOW = 0.5  # of the rate in fp32: below it, products in 16 bits are slow whatever the processor is (our choice)
LINK = "https://docs.pytorch.org/docs/stable/amp.html"


@rule("KE11")
def half_precision_on_cpu(
    half_products: HalfProducts | None, steps: Steps, manifest: RankManifest | None = None
) -> Verdicts:
    found = half_products
    if found is None:
        yield NotApplicable("the training computes on a device")
        return
    if not found.dtype:
        yield NotApplicable("the training multiplies nothing in 16 bits")
        return
    measured, usual = found.full_rate_seen, found.full_rates[1]
    rate, slow = found.flops / max(found.ns, 1), SLOW * usual
    if found.ns < WORTH_SHARE * steps.mean_ns or found.has_units or rate >= slow:
        units = {True: "has units for it", False: "has no unit for it", None: "is not known"}[found.has_units]
        yield Clean(f"{found.dtype} products take {ms(found.ns)} a step, at {rate:,.3g} GFLOP/s; the CPU {units}")
        return
    fp32 = f"fp32 reaches {usual:,.3g} here" if measured else f"fp32 typically reaches {usual:,.3g}"
    lacks = f" Its processor lists none of {', '.join(sorted(UNITS[found.dtype]))}." * (found.has_units is False)
    yield Finding(
        evidence=(
            Evidence(f"Products in {found.dtype} on the CPU take {ms(found.ns)} a step.", found.ns, "ns"),
            Evidence(f"They reach {rate:,.3g} GFLOP/s; {fp32}.{lacks}", rate, "GFLOP/s"),
        ),
        edits=(Recost(found.ids, InPrecision("fp32")),),
        fixes=(_fix(manifest),),
        confidence=Confidence(Level.HIGH, "the rates of both types are recorded")
        if measured
        else Confidence(Level.MEDIUM, "the processor has no such unit; its rate in fp32 is not recorded")
        if found.has_units is False
        else Confidence(Level.LOW, "neither the processor's flags nor its rate in fp32 are recorded"),
        site=found.site,
        basis=Basis.RULE_OF_THUMB,
    )


def _fix(manifest: RankManifest | None) -> Fix:
    """Of autocast, where it is entered; of the model, unless its weights are known to be others; else of tensors."""
    do, before, after = "keep model and data in float32", "model.to(torch.bfloat16)", "model.float()"
    dtypes = {dtype for optimizer in manifest.optimizers for dtype in optimizer.dtypes} if manifest else set()
    if manifest is not None and "cpu" in manifest.flags.autocast:
        do, after = "leave autocast off", "loss = criterion(model(x), y)"
        before = f'with torch.autocast("cpu", dtype=torch.bfloat16):\n    {after}'
    elif dtypes and dtypes.isdisjoint(("float16", "bfloat16")):
        do, before, after = "do not cast tensors to 16 bits", "scores = a.half() @ b.half()", "scores = a @ b"
    return Fix(f"Compute in fp32 on this processor: {do}.", before, after, Safety.ROUNDING, link=LINK)


EXAMPLES = [
    Fires(  # 0.054 Gflop take 2.7 ms at 20 a ns, and 10.7 at 5; what is left gets faster, too
        """
        4 steps of 100
        1 threads, 2 cores, flags avx2 fma
        cpu  aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::BFloat16","c10::BFloat16"]
        """,
        saving_ms=(69.2, 98),
    ),
    Fires(  # the rate in fp32 is known: 0.027 operations a ns
        """
        4 steps of 100
        1 threads, 2 cores
        cpu  aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::Half","c10::Half"]
        cpu  aten::mm 80-82 shapes=[[300,300],[300,300]] types=["float","float"]
        """
    ),
    Silent(  # it has units, and they are as fast as that
        """
        4 steps of 100
        1 threads, 2 cores, flags avx2 amx_bf16
        cpu  aten::mm 0-80 shapes=[[300,300],[300,300]] types=["c10::BFloat16","c10::BFloat16"]
        """
    ),
    Silent(
        """
        4 steps of 100
        1 threads, 2 cores, flags avx2
        cpu  aten::mm 0-80 shapes=[[300,300],[300,300]] types=["float","float"]
        """
    ),
    CannotTell("4 steps of 100\n1 threads, 2 cores\ncpu  aten::mm 0-80", because="shapes"),
]
