"""Rows are looked up by multiplying with zeros and ones.

`one_hot(words, classes).float() @ table` picks a row for each word. It writes a row of zeros and a one for each, and
multiplies every row of the table with every one of them.

Why it costs
    The rows and the product grow with the number of classes; a lookup reads one row for each word.

How to fix
    Look rows up by number: `table[words]`, or `torch.nn.functional.embedding(words, table)`.

Ignore when
    the rows are not only zeros and ones: mixed, smoothed, or learned from.

Sources
    https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html
"""

from diagnose.facts.shapes.lookups import OneHotProducts
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.02  # of the step, on the host or the device (our choice)
FORTH = Between(0.3, 0.05, 0.01)  # of making rows and multiplying: a lookup copies one row for each word (our choice)
BACK = Between(0.9, 0.5, 0.2)  # of the backward pass: the gradient of the whole table is filled with zeros all the same
LOOK_UP = Fix(
    "Look rows up by their numbers.", before="rows = one_hot(words, classes).float() @ table",
    after="rows = torch.nn.functional.embedding(words, table)", safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.embedding.html",
)  # fmt: skip


@rule("AT07")
def multiplied_with_one_hot(one_hot_products: tuple[OneHotProducts, ...], steps: Steps) -> Verdicts:
    large = [one for one in one_hot_products if _longest(one) >= WORTH_SHARE * steps.mean_ns]
    if not large:
        most = max(map(_longest, one_hot_products), default=0)
        yield Clean(f"products with rows of zeros and ones take {percent(most / max(steps.mean_ns, 1))} of the step")
    for one in large:
        forth, back, longest = one.forth, one.back, _longest(one)
        yield Finding(
            evidence=(
                Evidence(
                    f"Rows of zeros and ones, {' x '.join(map(str, one.shape))}, are made and multiplied with a table:"
                    f" with the backward pass {ms(longest)} a step.",
                    longest, "ns",
                ),
            ),
            edits=(
                Shorten(forth.ids, FORTH), Shorten(forth.work_ids, FORTH),
                Shorten(back.ids, BACK), Shorten(back.work_ids, BACK),
            ),
            fixes=(LOOK_UP,),
            confidence=Confidence(Level.HIGH, "that they are multiplied is recorded, by their shape"),
            basis=Basis.RULE_OF_THUMB, site=one.site,
        )  # fmt: skip


def _longest(one: OneHotProducts) -> int:
    return max(one.forth.host_ns + one.back.host_ns, one.forth.device_ns + one.back.device_ns)


EXAMPLES = [
    Fires(  # of 40 ms 28 go at least, most likely 38; the rest gets faster then, too
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::one_hot 0-10 shapes=[[256],[]] | aten::fill_ 1-9 shapes=[[256,8000],[]]
        cpu  aten::to 10-20 shapes=[[256,8000],[]]
        cpu  aten::matmul 20-40 shapes=[[256,8000],[8000,128]] | aten::mm 40-90 shapes=[[256,128],[128,128]]
        """,
        saving_ms=(28, 60.3),
    ),
    Silent(  # a lookup
        """
        4 steps of 100
        2 threads, 4 cores
        cpu  aten::embedding 0-10 shapes=[[8000,128],[256]] | aten::mm 40-90 shapes=[[256,128],[128,128]]
        """
    ),
    CannotTell("4 steps of 100\n2 threads, 4 cores\ncpu  aten::mm 0-10", because="shapes"),
]
