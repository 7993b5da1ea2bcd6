"""Costs that were measured on the machine of the recording: by hand, and before all that is known elsewhere."""

import gzip
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

import diagnose
from diagnose.capture.measuring import write
from diagnose.contracts.finding import PricedSaving
from diagnose.costs.book import cost_book, rest_on_measurements, wanted
from diagnose.costs.changes import InPrecision, Left, Padded, Recost
from diagnose.costs.host import DOUBLE_LEFT, UPDATED
from diagnose.costs.measured import measured_costs
from diagnose.facts.core.base import Facts
from diagnose.facts.core.work import work_table
from diagnose.facts.device.fusion import attention_chains
from diagnose.facts.device.precision import doubles
from diagnose.facts.optimizer.optimizer import optimizer_steps
from diagnose.pipeline import to_measure
from diagnose.replay import shown
from diagnose.replay.saving import Basis
from diagnose.reports import markdown
from diagnose.rulekit.shared_advice import attended, updated_at_once
from diagnose.source.recording import find
from diagnose.synthetic.reading import facts_of
from diagnose.trace.manifest import Optimizer
from diagnose.trace.measured import MeasuredOp, Measurements, OpSpec

LOW, LIKELY, HIGH = 0, 1, 2
SHAPES, TYPES = "[[8192,8192],[8192,8192]]", '["float","float"]'
MM = OpSpec("aten::mm", "[[8192, 8192], [8192, 8192]]", '["float", "float"]')  # as the reader writes them


def with_measured(facts: Facts, *ops: MeasuredOp) -> Facts:
    return Facts(replace(facts.rank, measured=Measurements("", "2.9", 1.0, ops)))


def on_gpu(*ops: MeasuredOp) -> Facts:
    """A product that takes 20 ms in each of two steps, and one that takes 0.1."""
    drawn = f"""
        2 steps of 100
        cpu  aten::mm 0-1 shapes={SHAPES} types={TYPES} | aten::mm 2-3 shapes=[[64,64],[64,64]] types={TYPES}
        gpu  sgemm 10-30 @0.5 | sgemm 40-40.1 @2.5
    """
    return with_measured(facts_of(drawn), *ops)


def test_what_a_busy_machine_spread_is_not_counted_and_measured_again() -> None:
    noisy = MeasuredOp(MM, "tf32", 20e6, 5e6, 1.0, 5)
    product = [Recost(np.array([int(work_table(on_gpu()).ids[0])]), InPrecision("tf32"))]
    assert (noisy.tells, Measurements("", "2.9", 1.0, (noisy,)).count) == (False, 0)
    assert [one.spec for one in wanted(on_gpu(noisy), [product], 0.0)] == [MM]
    calm = msgspec.structs.replace(noisy, spread=0.9)
    assert (calm.tells, Measurements("", "2.9", 1.0, (calm,)).count) == (True, 1)
    assert wanted(on_gpu(calm), [product], 0.0) == []


@pytest.mark.parametrize(
    ("before_ms", "after_ms", "spread", "expected"),
    [
        (20, 5, 0.0, (0.25 * 1.05, 0.25, 0.25 * 0.95)),
        (20, 5, 0.2, (0.25 * 1.2, 0.25, 0.25 * 0.8)),
        (20, 30, 0.0, (1.5 * 1.05, 1.5, 1.5 * 0.95)),  # it is slower then
        # Alone it takes half of what was recorded: 5 ms of 20 may be what is left, or half.
        (10, 5, 0.0, (0.5 * 1.05, 0.5, 0.25 * 0.95)),
        (20, 5, 1.0, None),  # the machine was busy
    ],
)
def test_what_is_left_is_the_ratio(
    before_ms: float, after_ms: float, spread: float, expected: tuple[float, ...] | None
) -> None:
    facts = on_gpu(MeasuredOp(MM, "tf32", before_ms * 1e6, after_ms * 1e6, spread, 5))
    found = measured_costs(facts).share((MM, "tf32"), 20e6)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_measurement_counts_before_what_is_known_of_the_device() -> None:
    facts = on_gpu(MeasuredOp(MM, "tf32", 20e6, 5e6, 0.0, 5))
    ids = work_table(facts).ids
    left = cost_book(facts).left([Recost(ids, InPrecision("tf32"))], LIKELY)
    assert left.share[left.ids == ids[0]] == pytest.approx(0.25)
    assert left.share[left.ids == ids[1]] < 1.0  # by what is known of an H100
    assert rest_on_measurements(facts, [Recost(ids, InPrecision("tf32"))])
    assert not rest_on_measurements(facts, [Recost(ids, InPrecision("bf16"))])


def test_what_is_to_be_measured_is_what_takes_time_after_each_fix_and_after_all() -> None:
    odd = facts_of(f"""
        2 steps of 100
        cpu  aten::mm 0-1 shapes=[[64,30],[30,51]] types={TYPES} | aten::mm 2-3 shapes={SHAPES} types={TYPES}
        gpu  tf32_gemm 10-15 @0.5 | sgemm 20-40 @2.5
    """)
    ids = work_table(odd).ids
    fixes = [[Recost(ids, InPrecision("bf16"))], [Recost(ids[[0, 2]], Padded())]]
    first, second = wanted(odd, fixes, least_ns=1e6)
    assert (first.spec, first.changes, first.ns) == (MM, ("bf16",), 20e6)
    assert (second.spec.shapes, second.ns) == ("[[64, 30], [30, 51]]", 5e6)
    assert second.changes == ("bf16", "padded", "bf16+padded")
    assert [one.spec for one in wanted(odd, fixes, least_ns=6e6)] == [MM]
    done = with_measured(odd, MeasuredOp(MM, "bf16", why="the time limit was reached"))
    assert [one.spec for one in wanted(done, fixes, least_ns=6e6)] == []


DOUBLES = """
    2 steps of 100
    1 threads, 2 cores
    cpu  aten::mm 0-60 shapes=[[300,300],[300,300]] types=["double","double"]
"""


def test_where_the_cpu_trains_its_ops_change() -> None:
    facts = facts_of(DOUBLES)
    change = Recost(doubles(facts).ids, InPrecision("fp32"))
    by_rule = cost_book(facts).left([change], LIKELY)
    assert (len(by_rule.ids), by_rule.share.tolist()) == (2, [DOUBLE_LEFT[LIKELY]] * 2)
    (one,) = wanted(facts, [[change]], 1e6)
    assert (one.spec.op, one.changes, one.ns) == ("aten::mm", ("fp32",), 60e6)
    measured = with_measured(facts, MeasuredOp(one.spec, "fp32", 60e6, 12e6, 0.0, 5))
    assert cost_book(measured).left([change], LIKELY).share.tolist() == pytest.approx([0.2, 0.2])


def test_nodes_of_autograd_are_priced_by_the_ops_in_them() -> None:
    facts = facts_of("""
        1 steps of 100
        1 threads, 2 cores
        cpu  MmBackward0 0-60 | aten::mm 10-50 shapes=[[300,300],[300,300]] types=["double","double"]
    """)
    names = facts.rank.spans["name"].astype(str)
    node = np.flatnonzero(names == "MmBackward0")
    left = cost_book(facts).left([Recost(node, InPrecision("fp32"))], LIKELY)
    assert names.iloc[left.ids].tolist() == ["aten::mm"]


ADAM = """
    2 steps of 100
    1 threads, 2 cores
    cpu  optimizer 10-50
    cpu  aten::lerp_ 15-20 shapes=[[8,4],[8,4]] types=["float","float"]
    cpu  aten::addcdiv_ 20-30 shapes=[[8,4],[8,4],[8,4]] types=["float","float","float"]
    cpu  aten::lerp_ 35-36 shapes=[[4],[4]] types=["float","float"]
    cpu  aten::addcdiv_ 36-40 shapes=[[4],[4],[4]] types=["float","float","float"]
"""
"""Calls of 40 ms, with ops of 20 in them."""


def test_where_the_cpu_trains_a_call_of_an_optimizer_is_measured_whole() -> None:
    facts = facts_of(ADAM)
    (one,) = optimizer_steps(facts)
    change = updated_at_once(one, "fused", [Optimizer(name="AdamW", weight_decay=0.01)])
    by_rule = cost_book(facts).left([change], LIKELY)
    assert (by_rule.ids.tolist(), set(by_rule.share)) == (one.op_ids.tolist(), {UPDATED[LIKELY]})
    (asked,) = wanted(facts, [[change]], 1e6)
    assert asked.spec == OpSpec(
        "torch.optim.AdamW", "[[8, 4], [4]]", '["float", "float"]', scalars='{"foreach": false, "weight_decay": 0.01}'
    )
    assert (asked.changes, asked.ns) == (("fused",), 40e6)
    measured = with_measured(facts, MeasuredOp(asked.spec, "fused", 40e6, 10e6, 0.0, 5))
    left = cost_book(measured).left([change], LIKELY)
    assert (left.ids.tolist(), left.share.tolist()) == (one.ids.tolist(), [0.25, 0.25])
    assert rest_on_measurements(measured, [change])
    # 10 ms of the 40 of a call are left; without the measurement 4 of the 20 of its ops.
    assert [shown.change(some, change).left for some in (measured, facts)] == [
        pytest.approx((0.25 * 1.05, 0.25, 0.25 * 0.95)),
        pytest.approx(UPDATED),
    ]


def test_an_optimizer_whose_closure_runs_in_its_calls_is_not_measured() -> None:
    facts = facts_of(ADAM.replace("optimizer 10-50", "optimizer 10-50 | zero_grad 11-12"))
    (one,) = optimizer_steps(facts)
    assert one.parameters == ()
    assert wanted(facts, [[updated_at_once(one, "fused")]], 1e6) == []


ATTENTION = """
    2 steps of 100
    cpu  aten::bmm 0-1 shapes=[[8,64,32],[8,32,48]] types=["float","float"]
    cpu  aten::_softmax 2-3 shapes=[[2,4,64,48]] types=["float"]
    cpu  aten::bmm 4-5 shapes=[[8,64,48],[8,48,32]] types=["float","float"]
    gpu  sgemm 10-20 @0.5 | softmax 20-40 @2.5 | sgemm 40-50 @4.5
"""


def test_attention_written_out_is_measured_as_one_in_the_type_that_other_fixes_leave() -> None:
    facts = facts_of(ATTENTION)
    (chain,) = attention_chains(facts)
    products = work_table(facts).ids[[0, 2, 3, 5]]
    fused, narrow = attended(chain), Recost(products, InPrecision("bf16"))
    spec = OpSpec("attention", "[[8, 64, 32], [8, 48, 32], [8, 48, 32]]", '["float", "float", "float"]')
    asked = {one.spec: one for one in wanted(facts, [[fused], [narrow]], 1e6)}
    assert (asked[spec].changes, asked[spec].ns) == (("fused", "bf16+fused"), 40e6)
    ops = (MeasuredOp(spec, "fused", 40e6, 20e6, 0.0, 5), MeasuredOp(spec, "bf16+fused", 40e6, 4e6, 0.0, 5))
    book = cost_book(with_measured(facts, *ops))
    # What is left is that of all three, in the place of the first, of 10 ms.
    assert taken_ms(book.left([fused], LIKELY), facts) == pytest.approx([20, 20])
    assert taken_ms(book.left([narrow, fused], LIKELY), facts) == pytest.approx([4, 4])


def taken_ms(left: Left, facts: Facts) -> list[float]:
    some = [at for at, one in enumerate(left.ids) if one not in left.gone]
    ms: list[float] = (facts.rank.spans["dur_ns"].to_numpy()[left.ids[some]] * left.share[some] / 1e6).tolist()
    return ms


def test_on_a_gpu_the_work_of_an_optimizer_s_call_becomes_what_was_measured() -> None:
    drawn = (
        ADAM.replace("    1 threads, 2 cores\n", "").replace("addcdiv_ 20-30", "addcdiv_ 20-20.1")
        + """
        gpu  pointwise 30-40 @20.05 | pointwise 40-70 @38
    """
    )
    facts = facts_of(drawn)
    (one,) = optimizer_steps(facts)
    change = updated_at_once(one, "fused")
    (asked,) = wanted(facts, [[change]], 1e6)
    assert (asked.spec.op, asked.ns) == ("torch.optim.AdamW", 40e6)
    book = cost_book(with_measured(facts, MeasuredOp(asked.spec, "fused", 40e6, 10e6, 0.0, 5)))
    assert book.left([change], LIKELY).share == pytest.approx(0.25)


SAMPLE = Path(__file__).parents[2] / "sample_traces/planted/kernels/data_in_double_precision/medium"


def recording(folder: Path) -> Path:
    """A copy of a training on the CPU in fp64."""
    for path in SAMPLE.iterdir():
        shutil.copy(path, folder)
    return folder


def test_the_file_beside_a_trace_prices_its_fixes(tmp_path: Path) -> None:
    before = priced(recording(tmp_path))
    assert before.basis is Basis.RULE_OF_THUMB
    asked = to_measure(find([tmp_path]).ranks[0])
    assert (asked.device, {change for one in asked.wanted for change in one.changes}) == ("", {"fp32"})
    ops = tuple(MeasuredOp(one.spec, "fp32", 1e6, 1e4, 0.0, 5) for one in asked.wanted)
    lost = MeasuredOp(OpSpec("mine::op", "[]", "[]"), "fp32", why="torch has no such op")
    write(tmp_path / "rank0.costs.json.gz", Measurements("", "2.9", 11.4, (*ops, lost)))
    after, found = priced(tmp_path), diagnose.analyze(tmp_path)
    assert after.basis is Basis.MEASURED
    assert after.likely_ns > before.likely_ns
    assert found.measured is not None
    assert (found.measured.ops, found.measured.not_measured, found.measured.seconds) == (len(ops), 1, 11.4)
    assert "benchmarked on this machine" in markdown.render(found)


def priced(folder: Path) -> PricedSaving:
    (one,) = (one for one in diagnose.analyze(folder).findings if one.rule == "double_precision")
    return one.saving


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", gzip.compress(b"[1]"), gzip.compress(b'{"ops": 1}')],
    ids=["empty", "plain", "a list", "no ops"],
)
def test_a_damaged_file_is_named_and_changes_nothing(tmp_path: Path, content: bytes) -> None:
    recording(tmp_path)
    (tmp_path / "rank0.costs.json.gz").write_bytes(content)
    found = diagnose.analyze(tmp_path)
    assert found.conclusive
    assert found.measured is None
    (note,) = [note for note in found.integrity if "costs" in note.what]
    assert note.what.startswith("rank0.costs.json.gz ")
    assert note.effect.endswith("is not known. Measure again: diagnose measure.")
