"""What rules on code that could be fused say alike: what fusing it changes, and whether it was to be compiled."""

from __future__ import annotations

from diagnose.contracts.finding import Evidence, Fix
from diagnose.facts.core.base import Missing
from diagnose.facts.device.chains import PointwiseChains
from diagnose.facts.host.compiling import Compiling
from diagnose.fixes.setting import Safety
from diagnose.replay.edits import Between, Edit, Replace, Shorten, Times
from diagnose.trace.units import duration as ms

MOST_SHOWN = 4
"""Names of ops in the evidence."""


def fusing(chains: PointwiseChains) -> tuple[Edit, ...]:
    """Each chain as one kernel; on the CPU, each thread's chains in the time that is left of them together."""
    if not chains.on_cpu:
        return (Replace(chains.ids, chains.group, chains.fused_ns),)
    whole = max(int(chains.ns.sum()), 1)
    keep = Between(*(float(level.sum()) / whole for level in chains.fused_ns))
    return tuple(Shorten(Times(*times), keep) for times in chains.times)


def known(chains: PointwiseChains | None) -> PointwiseChains:
    """The chains. Raises Missing where they are not known."""
    if chains is None:
        raise Missing("shapes", "Record with record_shapes=True, or diagnose profile.")
    return chains


def chains_taken(chains: PointwiseChains) -> Evidence:
    """How many chains there are, what they take, and the ops of the longest."""
    work = "ops" if chains.on_cpu else "kernels"
    like = f", such as {', '.join(chains.ops[:MOST_SHOWN])}" if chains.ops else ""
    text = f"{chains.chains} chains of memory-bound {work} a step take {ms(chains.chains_ns)}{like}."
    return Evidence(text, chains.chains_ns, "ns")


def torchs_own(chains: PointwiseChains) -> tuple[Fix, ...]:
    """What torch has for the whole of the longest chain, as far as its ops tell what it is."""
    ops = {name.removeprefix("aten::").rstrip("_") for name in chains.ops}
    return tuple(
        Fix(f"Call what torch has for the whole, where this is {what}.", before, after, safety=Safety.ROUNDING)
        for what, some, others, before, after in _WHOLES
        if ops & some and ops & others
    )


_WHOLES = (
    (
        "a loss",
        {"log", "exp", "logsumexp"},
        {"sum", "mean", "softmax", "_softmax", "gather"},
        "-(one_hot * scores.softmax(-1).log()).sum(-1).mean()",
        "torch.nn.functional.cross_entropy(scores, labels)",
    ),
    (
        "a norm",
        {"rsqrt", "sqrt", "std"},
        {"mean", "var", "std"},
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight",
        "torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)  # PyTorch 2.4; layer_norm",
    ),
    (
        "an activation",
        {"tanh", "erf"},
        {"mul", "pow", "add"},
        "0.5 * x * (1 + torch.erf(x / 2**0.5))",
        "torch.nn.functional.gelu(x)",
    ),
)
"""What it is, ops of which one has to be there, others of which one has to, as written out, as torch has it."""


def gave_up(compiling: Compiling) -> bool:
    """Whether code was to be compiled, and nothing compiled runs: nothing fits, and nothing is compiled any more.

    A search without a compiled region after it may also be one for a piece without any op, so no region may be called.
    """
    return compiling.missed > 0 and not compiling.region_calls
