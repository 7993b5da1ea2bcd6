"""Every layer computes again what has no gradient.

Masks, positions, rotations or scaled graphs depend on no weight; made within each layer, they are made as often as
there are layers, in every step.

Why it costs
    The same values are computed again from the same. What depends on a batch is needed once a step, what never changes
    once before training.

How to fix
    Compute it once, where the model begins its forward pass, and give it to every layer; or keep it as a buffer
    (`register_buffer`) where it never changes. PyTorch Geometric's `GCNConv` has `cached=True` for that.

Ignore when
    each layer computes it from data of its own.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer
    https://pytorch-geometric.readthedocs.io/en/latest/generated/torch_geometric.nn.conv.GCNConv.html
"""

from diagnose.facts.autograd.recomputed import Recomputed
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such layers (our choice)
MOST_SHOWN = 4  # names of ops in the evidence
AGAIN = Between(1.0, 0.0, 0.0)  # of the time in later layers: nothing is gained if each has values of its own
FIRST = Between(1.0, 1.0, 0.0)  # of the time in the first: gained if the values never change
ONCE = Fix(
    "Compute it once a step, and give it to every layer.", before="for layer in layers: x = layer(x, scaled(graph))",
    after="ready = scaled(graph)\nfor layer in layers: x = layer(x, ready)", safety=Safety.SAME_NUMBERS,
)  # fmt: skip
BUFFER = Fix(
    "If it never changes, compute it before training and keep it as a buffer.",
    after='self.register_buffer("ready", scaled(graph), persistent=False)', safety=Safety.SAME_NUMBERS,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.register_buffer",
)  # fmt: skip


@rule("AT08")
def computed_in_every_layer(recomputed: tuple[Recomputed, ...], steps: Steps) -> Verdicts:
    often = [one for one in recomputed if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if one.again.longest_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max((one.again.longest_ns for one in often), default=0)
        share = percent(most / max(steps.mean_ns, 1))
        yield Clean(f"what layers compute alike, without a gradient, takes {share} of the step at most")
    for one in large:
        names = ", ".join(one.ops[:MOST_SHOWN]) + ", ..." * (len(one.ops) > MOST_SHOWN)
        on_device = f", {ms(one.again.device_ns)} of GPU time" * (one.again.device_ns > 0)
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.layers} layers run the same ops on equal shapes ({names}), and no gradient goes through"
                    f" them: after the first {ms(one.again.host_ns)} of host time a step{on_device}.",
                    one.again.longest_ns, "ns",
                ),
            ),
            edits=(
                *(Shorten(ids, AGAIN) for ids in (one.again.ids, one.again.work_ids)),
                *(Shorten(ids, FIRST) for ids in (one.first.ids, one.first.work_ids)),
            ),
            fixes=(ONCE, BUFFER),
            confidence=Confidence(Level.MEDIUM, "whether layers compute it from the same values is not recorded"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


EXAMPLES = [
    Fires(  # likely two of three times 8 ms
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::rsqrt 0-8 sequence=1 shapes=[[8]] | aten::mul 8-12 sequence=1 shapes=[[8,8],[8,8]]
        cpu  aten::rsqrt 12-20 sequence=2 shapes=[[8]] | aten::mul 20-24 sequence=2 shapes=[[8,8],[8,8]]
        cpu  aten::rsqrt 24-32 sequence=3 shapes=[[8]] | aten::mul 32-36 sequence=3 shapes=[[8,8],[8,8]]
        cpu  aten::ones_like 40-41 sequence=4 shapes=[[]]
        cpu  "autograd::engine::evaluate_function: MulBackward0" 42-50 sequence=3 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 52-60 sequence=2 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 62-70 sequence=1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 50-51 x3 every 10
        """,
        saving_ms=(0, 34.94),
    ),
    Silent(  # all rounds use the same weights: a loop over data
        """
        1 steps of 100
        2 threads, 4 cores
        cpu  aten::rsqrt 0-8 sequence=1 shapes=[[8]] | aten::mul 8-12 sequence=1 shapes=[[8,8],[8,8]]
        cpu  aten::rsqrt 12-20 sequence=2 shapes=[[8]] | aten::mul 20-24 sequence=2 shapes=[[8,8],[8,8]]
        cpu  aten::rsqrt 24-32 sequence=3 shapes=[[8]] | aten::mul 32-36 sequence=3 shapes=[[8,8],[8,8]]
        cpu  aten::ones_like 40-41 sequence=4 shapes=[[]]
        cpu  "autograd::engine::evaluate_function: MulBackward0" 42-50 sequence=3 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 52-60 sequence=2 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: MulBackward0" 62-70 sequence=1 "Fwd thread id"=1
        cpu  "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad" 70-71
        """
    ),
    CannotTell("1 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
