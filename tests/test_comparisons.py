"""Recorded pairs are explained to the last nanosecond, whatever recorded them."""

from pathlib import Path

import pytest

import diagnose
from diagnose.contracts.comparison import Comparison, PartKind

SAMPLES = Path(__file__).parent.parent / "sample_traces"
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
