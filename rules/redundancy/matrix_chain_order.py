"""Matrix products are taken in an expensive order.

`(query @ key.mT) @ value` makes a table of all places by all places, which `query @ (key.mT @ value)` does not need
where nothing comes between; an optimizer that squares a matrix on its long side makes it orthogonal just as well on
its short one.

Why it costs
    A product of m by k with k by n takes m k n multiplications. What is made on the way is larger in one order than in
    the other, and with it the next product.

How to fix
    Put the brackets where the smallest matrix is made; turn tall matrices before they are squared.

Ignore when
    the large matrix is looked at by something that torch does not see.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.linalg.multi_dot.html
    https://arxiv.org/abs/2006.16236
    https://kellerjordan.github.io/posts/muon/
"""

from diagnose.facts.values.product_order import ProductOrder
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step, on the host or the device (our choice)
OFTEN = 0.5  # of the steps with such products (our choice)
# Of the multiplications that are saved that much time: smaller products take more time for each (our choice).
GAIN = (0.5, 0.9, 1.0)
BRACKETS = Fix(
    "Put the brackets where the smallest matrix is made.",
    before="made = (query @ key.mT) @ value",
    after="made = query @ (key.mT @ value)",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.linalg.multi_dot.html",
)
TURN = Fix(
    "Turn a tall matrix before it is squared, and back afterwards.",
    before="made = orthogonal(update)",
    after="made = orthogonal(update.mT).mT if update.shape[0] > update.shape[1] else orthogonal(update)",
    safety=Safety.ROUNDING,
    link="https://kellerjordan.github.io/posts/muon/",
)


@rule("AT34")
def matrix_chain_order(product_orders: tuple[ProductOrder, ...], steps: Steps) -> Verdicts:
    often = [one for one in product_orders if one.steps_seen >= OFTEN * steps.count]
    large = [one for one in often if _saved_ns(one) >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max(map(_saved_ns, often), default=0)
        yield Clean(f"another order of products would save {percent(most / max(steps.mean_ns, 1))} of the step at most")
    for one in large:
        rows, columns = one.largest
        what = "a matrix is squared on its long side" if one.squares else "two products follow each other"
        yield Finding(
            evidence=(
                Evidence(
                    f"{one.times} times a step {what}, by way of {rows:,} by {columns:,} numbers that nothing else"
                    f" takes: {ms(one.work.longest_ns)}, with the backward pass. In another order"
                    f" {percent(one.left)} of the multiplications are left.",
                    one.work.longest_ns,
                    "ns",
                ),
            ),
            edits=(Shorten(one.work.data_ids, Between(*(1 - gain * (1 - one.left) for gain in GAIN))),),
            fixes=(TURN if one.squares else BRACKETS,),
            confidence=Confidence(Level.MEDIUM, "it is seen what takes what, but not by what kernels it would be done"),
            basis=Basis.RULE_OF_THUMB,
            site=one.site,
        )


def _saved_ns(one: ProductOrder) -> int:
    return int(one.work.longest_ns * GAIN[1] * (1 - one.left))


EXAMPLES = [
    Fires(  # 512 x 32 x 512 twice, or 32 x 512 x 32 twice: of 60 ms 6 % are left
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::bmm | aten::bmm takes 0,- | aten::relu takes 1
        cpu  aten::bmm 0-30 shapes=[[8,512,32],[8,32,512]] | aten::bmm 30-60 shapes=[[8,512,512],[8,512,32]]
        cpu  aten::relu 60-90
        """,
        saving_ms=(28, 76.2),
    ),
    Silent(  # something comes between
        """
        4 steps of 100
        2 threads, 4 cores
        values aten::bmm | aten::_softmax takes 0 | aten::bmm takes 1,-
        cpu  aten::bmm 0-30 shapes=[[8,512,32],[8,32,512]] | aten::_softmax 30-40 shapes=[[8,512,512]]
        cpu  aten::bmm 40-70 shapes=[[8,512,512],[8,512,32]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
