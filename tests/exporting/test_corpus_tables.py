"""Sums over the tables of real traces are the figures of the report, as the documentation says."""

from collections import Counter
from pathlib import Path

import pytest

import diagnose
from diagnose.contracts.comparison import Comparison, PartKind
from diagnose.exporting import tables as exported
from diagnose.facts.core.base import Facts, Missing
from diagnose.facts.core.idle import idle
from diagnose.facts.core.steps import Measure, steps
from diagnose.facts.device.kernels import kernel_kinds, kernel_ops
from diagnose.facts.host.python import ops
from diagnose.source import ranks

TRACES = (
    "hta/nccl_a100_rank0_of_2.json.gz",
    "param/dlrm_8_ranks/worker1.pt.trace.json.gz",
    "tensorboard/resnet50_autograd_0_workers.json.gz",
    "tracelens/b200_eager.json.gz",
    "tracelens/h100_bert_small.json.gz",
    "tracelens/mi300_resnet_act_checkpoint.json.gz",
    "tracelens/sglang_decode_graphs.json.gz",
)
NAMES = ("kernels", "idle_gaps", "ops", "spans")


@pytest.mark.parametrize("name", TRACES)
def test_sums_are_the_figures_of_the_report(corpus: Path, name: str) -> None:
    facts = Facts(ranks.read(corpus / "kineto" / name))
    tables = {name: one for name, one in exported.made(facts, NAMES) if not isinstance(one, Missing)}
    count = steps(facts).count

    def summed(table: str, by: str, what: str) -> dict[str, int]:
        rows = tables[table]
        rows = rows[rows["used"]] if "used" in rows else rows
        return rows.assign(**{by: rows[by].astype(object).fillna("")}).groupby(by)[what].sum().to_dict()

    def near(ns: int) -> object:
        return pytest.approx(ns * count, abs=count)

    for by, groups in (("kind", kernel_kinds), ("op", kernel_ops)):
        assert summed("kernels", by, "dur_ns") == {group.label: near(group.ns) for group in groups(facts)}
    if steps(facts).measure is not Measure.WINDOW:  # Its end may lie within an op, whose inner ops are left out then.
        own = summed("ops", "name", "self_ns")
        assert {op.name: own[op.name] for op in ops(facts)} == {op.name: near(op.self_ns) for op in ops(facts)}
    causes, found = Counter[str](), summed("idle_gaps", "cause", "dur_ns")
    for one in idle(facts):
        causes[one.cause.value] += one.ns
    assert found == {cause: pytest.approx(ns * count, abs=count * len(idle(facts))) for cause, ns in causes.items()}
    spans = tables["spans"]
    known = tables["kernels"].dropna(subset=["op_id"])
    assert (spans["name"][known["op_id"]].astype(str).to_numpy() == known["op"].astype(str).to_numpy()).all()
    assert set(known["op_id"]) | set(known["outer_op_id"]) <= set(tables["ops"].index)


SAMPLES = Path(__file__).parents[2] / "sample_traces"
RESNET = (
    "kineto/tensorboard/resnet50_autograd_0_workers.json.gz",
    "kineto/tensorboard/resnet50_autograd_4_workers.json.gz",
)
PAIRS = [
    RESNET,
    ("nsight/h100_2gpu_1s.sqlite", "nsight/healthy_1pct.sqlite"),
    ("kineto/hta/resnet_v100_5_steps.json.gz", "nsight/h100_2gpu_1s.sqlite"),
    ("distributed/ddp_even", "distributed/ddp_slow"),
]


def adds_up(found: Comparison) -> None:
    assert sum(part.ns for part in found.parts) == found.after_ns - found.before_ns == found.difference_ns.likely
    assert sum(part.before_ns for part in found.parts) == found.before_ns
    for part in found.parts:
        assert part.ns == part.after_ns - part.before_ns
        assert not part.detail or sum(change.ns for change in part.detail) == part.ns
        assert part.kind is not PartKind.NOT_KNOWN


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: Path(pair[0]).name)
def test_the_parts_of_public_recordings_add_up(pair: tuple[str, str], corpus: Path) -> None:
    adds_up(diagnose.compare(*(corpus / side for side in pair)))


@pytest.mark.slow
def test_the_parts_of_our_own_recordings_add_up() -> None:
    case = SAMPLES / "planted" / "communication" / "ranks_meet_to_print"
    found = diagnose.compare(case / "strong_fixed", case / "strong")
    adds_up(found)
    assert found.verdict == "slower"


def test_what_loader_workers_do_for_a_public_training_is_the_loader_s_idle_time(corpus: Path) -> None:
    found = diagnose.compare(*(corpus / side for side in RESNET))
    largest = found.parts[0]
    assert (found.verdict, largest.kind, largest.of) == ("faster", PartKind.IDLE, "loader")
    assert largest.ns == pytest.approx(found.difference_ns.likely, rel=0.05)
    assert [one.rule for one in found.findings.fixed] == ["dataloader_starvation"]


def test_a_rank_that_was_slowed_is_named(corpus: Path) -> None:
    """Its recipe (INDEX.md) has one rank compute twice as much."""
    found = diagnose.compare(corpus / "distributed" / "ddp_even", corpus / "distributed" / "ddp_slow")
    grown = {rank.after.rank: (rank.after.computing_ns or 0) - (rank.before.computing_ns or 0) for rank in found.ranks}
    assert grown[1] > 10 * abs(grown[0])
