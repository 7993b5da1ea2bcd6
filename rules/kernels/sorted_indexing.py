"""The backward pass of indexing sorts the indices.

The backward pass of `x[indices]` sorts the indices, to add repeated rows in one fixed order. With
`torch.use_deterministic_algorithms(True)`, index_add and scatter_add do the same.

Why it costs
    Sorting launches several kernels, and repeated rows are added one after another. Atomics need neither.
How to fix
    Use `index_select`, `torch.nn.functional.embedding` or `gather`, whose backward passes add with atomics. Disable
    deterministic algorithms where results need not be bit-identical.
Ignore when
    results must be bit-identical from run to run: atomics add in any order.
Sources
    https://github.com/pytorch/pytorch/issues/15245
    https://docs.pytorch.org/docs/stable/notes/randomness.html
"""

from diagnose.facts.device.kernels import SortedIndexing
from diagnose.rulekit.vocabulary import *

WORTH_SHARE = 0.01  # of the step in such additions (our choice)
SELECT = Fix(
    "Select rows with an op whose backward pass adds with atomics.",
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
        at_best = f"; moving the rows alone takes {about(one.floor * one.work.device_ns)}" if one.floor else ""
        yield Finding(
            title="Deterministic algorithms sort indices before adding" if one.deterministic else "",
            evidence=(
                Evidence(
                    f"index_put_ sorts its indices {one.calls:,.3g} times per step: {ms(one.work.device_ns)}{at_best}.",
                    one.work.device_ns,
                    "ns",
                ),
            ),
            edits=(unsorted(one),),
            fixes=(ALLOW,) if one.deterministic else (SELECT,),
            confidence=Confidence(
                Level.MEDIUM if known else Level.LOW,
                "atomics wait on repeated rows, and how often rows repeat is not recorded",
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
    # put in place without adding
    Silent("""
        4 steps of 20
        cpu  aten::index_put_ 0-1 shapes=[[50000,1024],[],[62500,1024],[]] types=["float","","float",""]
        cpu  sync 2-19.81
        gpu  "index_elementwise_kernel<128, 4>" 0.06-10.06 @0.05 | pointwise 10.06-19.8 @1.2
    """),
]
