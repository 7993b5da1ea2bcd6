"""Gradients of indexed rows are sorted before they are added.

The backward pass of `x[indices]` sorts the indices, so that rows that occur twice are added in one fixed order. With
`torch.use_deterministic_algorithms(True)` index_add and scatter_add do the same.

Why it costs
    Sorting launches several kernels, and rows that occur often are added one after another. Adding with atomics needs
    neither.

How to fix
    Take rows by `index_select`, `torch.nn.functional.embedding` or `gather`, whose backward passes add with atomics.
    Switch deterministic algorithms off where bits need not repeat.

Ignore when
    results must be the same bits from run to run: atomics add in any order.

Sources
    https://github.com/pytorch/pytorch/issues/15245
    https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from diagnose.facts.device.indexing import SortedIndexing
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such additions (our choice)
SELECT = Fix(
    "Select rows by an op whose backward pass adds with atomics.",
    after="y = x.index_select(0, indices)",
    safety=Safety.ROUNDING,
    link="https://docs.pytorch.org/docs/stable/generated/torch.index_select.html",
)
ALLOW = Fix.of(fixes.Determinism())


@rule("KE08")
def sorted_indexing(sorted_indexing: tuple[SortedIndexing, ...], steps: Steps) -> Verdicts:
    large = [one for one in sorted_indexing if one.work.device_ns >= WORTH_SHARE * steps.mean_ns]
    if not large:
        total = sum(one.work.device_ns for one in sorted_indexing)
        yield Clean(f"additions at sorted indices take {percent(total / steps.mean_ns)} of the step")
    for one in large:
        known = one.floor is not None
        at_best = f" Moving the rows alone takes {ms(round(one.floor * one.work.device_ns))}." if one.floor else ""
        yield Finding(
            title="Deterministic algorithms sort indices before they add" if one.deterministic else "",
            evidence=(
                Evidence(
                    f"index_put_ adds at sorted indices {one.calls:,.3g} times a step: {ms(one.work.device_ns)},"
                    f" {percent(one.work.device_ns / steps.mean_ns)} of it.{at_best}",
                    one.work.device_ns,
                    "ns",
                ),
            ),
            edits=(unsorted(one),),
            fixes=(ALLOW,) if one.deterministic else (SELECT,),
            confidence=Confidence(
                Level.MEDIUM if known else Level.LOW,
                "how often rows occur, and so how long atomics wait, is not recorded",
            ),
            basis=Basis.RULE_OF_THUMB,
        )


EXAMPLES = [
    Fires(  # 256 MB of rows, moved three times at 60 % of 3,350 GB/s: 0.4 ms, not 10
        """
        4 steps of 20
        cpu  aten::index_put_ 0-1 shapes=[[50000,1024],[],[62500,1024],[]] types=["float","","float",""]
        cpu  sync 2-19.81
        gpu  "indexing_backward_kernel<float, 4>" 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
        """,
        saving_ms=(2.405, 8.85),
    ),
    Silent(  # put in place without adding
        """
        4 steps of 20
        cpu  aten::index_put_ 0-1 shapes=[[50000,1024],[],[62500,1024],[]] types=["float","","float",""]
        cpu  sync 2-19.81
        gpu  "index_elementwise_kernel<128, 4>" 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
        """
    ),
]
