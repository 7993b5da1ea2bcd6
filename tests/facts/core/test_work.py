"""The table of device operations: what each is and who asked for it."""

from diagnose.facts.core.work import work_table
from diagnose.trace.kinds import KernelKind
from tests.drawing import Drawing


def synthetic() -> Drawing:
    draw = Drawing()
    for number in range(2):
        at = 100 * number
        draw.step(number, at, at + 100)
        draw.op("aten::linear", at + 1, at + 30).op("aten::addmm", at + 2, at + 20)
        draw.launch("ampere_sgemm_32x32_sliced1x4_tn", (at + 3, at + 5), (at + 10, at + 60))
        draw.copy("HtoD (Pageable -> Device)", (at + 40, at + 45), (at + 60, at + 70), 4096)
    return draw.work("void at::native::vectorized_elementwise_kernel<4>", (190, 199))


def test_the_asking_op_is_the_outermost_and_the_op_the_innermost() -> None:
    facts = synthetic().facts()
    table, names = work_table(facts), facts.rank.spans["name"]
    told = [(str(names[op]), str(names[asked])) for op, asked in zip(table.op, table.asked_by, strict=True) if op >= 0]
    assert told == [("aten::addmm", "aten::linear")] * 2


def test_kinds_and_the_used_steps() -> None:
    table = work_table(synthetic().facts())
    assert table.of(KernelKind.GEMM).tolist() == [True, False, True, False, False]
    assert table.of(KernelKind.MEMORY, KernelKind.ELEMENTWISE).tolist() == [False, True, False, True, True]
    # The first step is not used: it ends when its last work does, at 70.
    assert table.in_steps.tolist() == [False, False, True, True, False]
    assert (table.op >= 0).tolist() == [True, False, True, False, False]
    assert table.launch[-1] == -1
    assert table.dur_ns.tolist() == [50_000, 10_000, 50_000, 10_000, 9_000]
