"""OpenMetrics text: valid by two parsers of others, with the Diagnosis' figures, and nothing where they are unknown."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as of_older_format

import diagnose
from diagnose.contracts.diagnosis import Diagnosis, RankSummary, StepTime
from diagnose.facts.core.host import HostTime
from diagnose.reports import exposition, openmetrics
from diagnose.trace.model import Device
from tests.exporting.synthetic import HOSTILE, training

RANKS = Path(__file__).parents[2] / "sample_traces" / "planted" / "ranks" / "one_rank_computes_more" / "medium"


@pytest.fixture(scope="module")
def synthetic(tmp_path_factory: pytest.TempPathFactory) -> Diagnosis:
    return diagnose.analyze(training().write(tmp_path_factory.mktemp("drawn") / "rank0.json"))


@pytest.fixture(scope="module")
def of_ranks() -> Diagnosis:
    return diagnose.analyze(RANKS)


def families(diagnosis: Diagnosis) -> dict[str, Metric]:
    return {one.name: one for one in text_string_to_metric_families(openmetrics.render(diagnosis))}


def values(diagnosis: Diagnosis, name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """The series of a family by the values of some labels."""
    family = families(diagnosis).get(f"diagnose_{name}")
    samples = [] if family is None else family.samples
    return {tuple(sample.labels.get(label, "") for label in labels): sample.value for sample in samples}


def test_it_is_valid_by_both_formats(synthetic: Diagnosis, of_ranks: Diagnosis) -> None:
    for diagnosis in (synthetic, of_ranks):
        text = openmetrics.render(diagnosis)
        new, old = list(text_string_to_metric_families(text)), list(of_older_format(text))
        assert text.endswith("\n# EOF\n")
        assert [one.samples for one in new] == [one.samples for one in old]
        assert {one.type for one in new} == {"gauge"}
        assert all(sample.timestamp is None for one in new for sample in one.samples)


def test_a_unit_is_in_the_name(of_ranks: Diagnosis) -> None:
    for family in families(of_ranks).values():
        assert family.unit in ("", "seconds", "bytes", "ratio")
        assert not family.unit or family.name.endswith(f"_{family.unit}")


def test_a_family_has_the_labels_that_it_says(synthetic: Diagnosis, of_ranks: Diagnosis) -> None:
    told = {f"diagnose_{one.name}": set(one.labels) for one in openmetrics.FAMILIES}
    assert len(told) == len(openmetrics.FAMILIES)
    for diagnosis in (synthetic, of_ranks):
        for family in families(diagnosis).values():
            assert {label for sample in family.samples for label in sample.labels} <= told[family.name]


def test_the_step_and_its_parts(synthetic: Diagnosis) -> None:
    """Each step of 100 us computes for 55 and copies for 8."""
    assert values(synthetic, "step_seconds", "statistic") == dict.fromkeys(
        [("mean",), ("median",), ("min",), ("max",)], pytest.approx(100e-6)
    )
    assert values(synthetic, "step_part_seconds", "part") == {
        ("compute",): pytest.approx(55e-6),
        ("exposed_communication",): 0,
        ("exposed_copy",): pytest.approx(8e-6),
        ("idle",): pytest.approx(37e-6),
        ("work_not_recorded",): 0,
    }
    assert values(synthetic, "idle_seconds", "cause") == {("python",): pytest.approx(37e-6)}
    assert values(synthetic, "kernel_seconds", "kind") == {
        ("gemm",): pytest.approx(50e-6),
        ("elementwise",): pytest.approx(5e-6),
    }
    assert values(synthetic, "steps", "state") == {("recorded",): 3, ("used",): 2}


def test_what_is_unknown_is_left_out(synthetic: Diagnosis) -> None:
    there = families(synthetic)
    for name in ("unprofiled_step_seconds", "mfu_ratio", "peak_memory_bytes", "job_step_seconds", "rank_step_seconds"):
        assert f"diagnose_{name}" not in there
    nothing = msgspec.structs.replace(synthetic, steps=None, breakdown=None, idle=None, replay=None, findings=())
    assert "diagnose_findings" not in families(nothing)
    assert "diagnose_step_seconds" not in families(nothing)
    assert "diagnose_run_info" in families(nothing)


def test_findings_have_the_diagnosis_savings(of_ranks: Diagnosis) -> None:
    first = of_ranks.findings[0]
    found = values(of_ranks, "finding_saving_seconds", "rule", "number", "bound")
    assert found[first.rule, "1", "likely"] == pytest.approx(first.saving.likely_ns / 1e9)
    assert len(found) == 3 * len(of_ranks.findings)
    assert values(of_ranks, "finding_saving_ratio", "number")["1",] == first.share_of_step
    many = msgspec.structs.replace(
        of_ranks, findings=tuple(msgspec.structs.replace(first, rank_order=place) for place in range(1, 200))
    )
    assert len(values(many, "finding_saving_ratio", "number")) == openmetrics.MOST_FINDINGS


def test_ranks_have_series_of_their_own(of_ranks: Diagnosis) -> None:
    waiting = values(of_ranks, "rank_waiting_seconds", "rank")
    assert set(waiting) == {("0",), ("1",)}
    assert waiting["0",] > waiting["1",]
    assert values(of_ranks, "ranks") == {(): 2}


def test_of_very_many_ranks_those_that_are_waited_for_have_series(of_ranks: Diagnosis) -> None:
    def summary(rank: int) -> RankSummary:
        return RankSummary(rank, StepTime(rank, rank + 1, rank, rank), None, (), host=HostTime(1, {}))

    many = msgspec.structs.replace(of_ranks, ranks=tuple(map(summary, range(5_000))))
    steps = values(many, "rank_step_seconds", "rank")
    assert len(steps) == openmetrics.MOST_RANKS
    assert ("1",) in steps  # The others wait for it: see `job`.
    assert values(many, "ranks_step_seconds", "statistic") == {
        ("min",): pytest.approx(1e-9),
        ("median",): pytest.approx(2500.5e-9),
        ("max",): pytest.approx(5000e-9),
    }
    assert len(openmetrics.render(many).splitlines()) < 500


def test_labels_are_escaped_and_bounded(synthetic: Diagnosis) -> None:
    names = ['a"b\\c\nd', HOSTILE.replace("\ud800", ""), "x" * 10_000]
    for name in names:
        device = Device(0, name, 0, 0, (0, 0), 0, 0)
        about = msgspec.structs.replace(synthetic.provenance, devices=(device,))
        found = values(msgspec.structs.replace(synthetic, provenance=about), "run_info", "device")
        assert list(found) == [(name if len(name) < exposition.MOST_LABEL else "x" * 199 + "…",)]
