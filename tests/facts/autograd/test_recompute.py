"""What checkpointing of activations computes again."""

from diagnose.facts.autograd.recompute import Recompute, recompute
from diagnose.synthetic.reading import facts_of

NODE = '"autograd::engine::evaluate_function: AddmmBackward0"'
LINEAR = 'shapes=[[1000,4],[4,4]] types=["float","float"]'


def synthetic(*backward: str) -> Recompute | None:
    """Two steps of 20 ms: three layers forward on the main thread, then a backward pass on its own."""
    return recompute(
        facts_of(
            f"""
            2 steps of 20
            cpu  aten::linear 1-2 x3 sequence=5 {LINEAR}
            cpu autograd  {" | ".join(backward)}
            gpu  bf16_gemm 10-14 @6.5 from autograd | bf16_gemm 14-16 @9.5 from autograd
            """
        )
    )


def test_a_node_that_runs_forward_ops_for_autograd() -> None:
    """The first, but not the last, launches 4 ms; between two of three ops of 1 ms lies 1 ms of Python."""
    found = synthetic(
        f'{NODE} 5-12 sequence=7 "Fwd thread id"=1',
        f"aten::linear 6-7 sequence=9 {LINEAR}",
        f"aten::linear 8-9 x2 sequence=10 {LINEAR}",
        f"aten::mm 10-11 {LINEAR}",
    )
    assert found is not None
    assert (found.pieces, found.host_ns) == (1, 4_000_000)
    assert (found.work.host_ns, found.work.device_ns) == (3_000_000, 6_000_000)
    ((_, between),) = found.between
    assert between.total == 2 * 1_000_000  # in two steps
    assert found.bytes == 3 * 1000 * 4 * 4


def test_ops_without_autograd_are_formulas_of_the_backward_pass() -> None:
    assert synthetic(f'{NODE} 5-12 sequence=7 "Fwd thread id"=1', f"aten::linear 6-7 x3 {LINEAR}") is None


def test_a_second_derivative_records_ops_that_no_forward_pass_had() -> None:
    ops = (f"aten::linear 6-7 sequence=9 {LINEAR}", "aten::mul 7-8 sequence=10", "aten::add 8-9 sequence=11")
    assert synthetic(f'{NODE} 5-12 sequence=7 "Fwd thread id"=1', *ops) is None


def test_without_a_backward_pass_nothing_is_computed_again() -> None:
    assert recompute(facts_of("2 steps of 9\ncpu aten::mm 0-1\ngpu sgemm 1-2 @0.5")) is None
