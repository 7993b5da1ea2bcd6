"""Metrics of a run that goes on: valid by a parser of others, with the log's figures, and known to the dashboard."""

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from diagnose.live import metrics
from diagnose.live.now import RankNow, rank_now
from diagnose.trace.run_log import Column, RunLog
from diagnose.version import __version__
from tests.live.drawn import MS, S, log, window

DASHBOARD = Path(__file__).parents[2] / "docs" / "watching-dashboard.json"

FIGURES = {
    "resident_bytes": 8e8,
    "read_bytes": 5e6,
    "minor_faults": 300.0,
    "cpu_s": 12.0,
    "sm_clock_mhz": 1410.0,
    "temperature_c": 60.0,
    "power_w": 300.0,
    "slowed": 0.0,
}


def text(ranks: list[RankNow]) -> str:
    return generate_latest(metrics.Metrics(ranks)).decode()


def values(*logs: RunLog) -> dict[tuple[str, ...], float]:
    """Of samples by their names and labels' values but `rank`."""
    families = text_string_to_metric_families(text([rank_now(one) for one in logs]))
    return {
        (
            sample.name.removeprefix("diagnose_watch_"),
            *(v for k, v in sample.labels.items() if k != "rank"),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def test_they_are_the_figures_of_the_log() -> None:
    found = values(log(*(window(at, **FIGURES) for at in range(4)), after_ns=3 * S))
    assert found["run_info", "optimizer", __version__, "1"] == 1
    assert found["steps_total",] == 161
    assert found["run_seconds",] == 9.0
    assert found["since_last_step_seconds",] == 3.0
    parts = {key[1]: value for key, value in found.items() if key[0] == "part_seconds_total"}
    assert parts == {"start": 2.0, "training": 3.2, "loader": 0.8}
    assert found["part_events_total", "training"] == 160
    assert found["phase_seconds_total", "forward"] == pytest.approx(0.64)
    assert found["step_quantile_seconds", "0.99", "now"] == 0.025
    assert found["memory_bytes", "resident"] == 8e8 + 1
    assert found["storage_bytes_total", "read", "training"] == 5e6 + 1
    assert found["page_faults_total", "minor"] == 301
    assert found["cpu_seconds_total",] == 13
    assert found["device_clock_hertz",] == 1411e6
    assert found["device_temperature_celsius",] == 61
    assert found["device_power_watts",] == 301
    assert found["device_slowed",] == 1
    assert found["ranks",] == 1


def test_a_histogram_counts_steps_up_to_each_limit() -> None:
    found = values(log(window(0), window(1)))
    buckets = [(float(key[1]), value) for key, value in found.items() if key[0] == "step_seconds_bucket"]
    assert len(buckets) == 42
    assert {limit: count for limit, count in buckets if 0.016 < limit < 0.05} == {
        0.01678: 0,  # 2^24 ns
        0.02373: 0,
        0.03355: 80,  # 2^25 ns
        0.04745: 80,
    }
    assert buckets[-1] == (float("inf"), 80)
    assert (found["step_seconds_count",], found["step_seconds_sum",]) == (80, 2.0)


def test_counters_never_fall_whatever_the_time_after_a_step_becomes() -> None:
    """Ten seconds after a step are an evaluation in the end, and no time outside of steps."""
    later = replace(window(1), columns={"evaluation": Column(1, 10 * S, 10 * S, 10 * S)}, steps=0)
    before = values(log(window(0), after_ns=10 * S))
    after = values(log(window(0), replace(later, ended_ns=13 * S)))
    counters = {key for key in before if key[0].endswith("_total")}
    assert ("part_seconds_total", "training") in counters
    assert all(after[key] >= before[key] for key in counters)
    assert after["part_seconds_total", "evaluation"] == 10.0


def test_findings_are_told_as_seen_looked_for_or_not_at_all() -> None:
    steps = [Column(40, 40 * ns, ns, ns, ()) for ns in range(20 * MS, 29 * MS, MS)]
    windows = [replace(window(at), columns={"step": step}) for at, step in enumerate(steps)]
    short, growing = values(log(window(0))), values(log(*windows))
    kinds = ("slower_steps", "growing_memory", "step_pauses", "epoch_starts")
    assert [short.get(("finding", kind)) for kind in kinds] == [None, None, 0, None]
    assert [growing.get(("finding", kind)) for kind in kinds] == [1, None, 0, None]
    # The line begins with 20 ms, which the nine are held against: 40 times 0, 1, ... 8 ms.
    assert growing["finding_saving_seconds", "slower_steps"] == pytest.approx(40 * 36 * 0.001)


def test_what_is_unknown_is_left_out() -> None:
    assert set(values()) == {("ranks",)}
    names = {key[0] for key in values(log())}
    assert {"steps_total", "part_seconds_total"} <= names
    assert names.isdisjoint({"step_seconds_bucket", "memory_bytes", "device_clock_hertz", "ranks_step_seconds"})


def test_several_ranks_have_series_of_their_own_and_a_spread() -> None:
    slow = replace(window(0), columns={"step": Column(20, S, 50 * MS, 50 * MS, ((409, 20),))})
    told = text([rank_now(log(window(0))), rank_now(log(slow, rank=1))])
    assert 'diagnose_watch_step_quantile_seconds{quantile="0.5",rank="1",when="now"} 0.05\n' in told
    assert 'diagnose_watch_ranks_step_seconds{statistic="max"} 0.05\n' in told
    assert 'diagnose_watch_ranks_step_seconds{statistic="median"} 0.0375\n' in told


def test_labels_are_escaped_and_bounded() -> None:
    found = values(replace(log(window(0)), steps_by='a"b\\c\nd' + "x" * 1000))
    (label,) = [key[1] for key in found if key[0] == "run_info"]
    assert label == 'a"b\\c\nd' + "x" * 192 + "…"


def test_the_dashboard_asks_for_series_that_are_served_by_labels_that_they_have() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    served: dict[str, set[str]] = {}
    for family in metrics.FAMILIES:
        ends = ["_bucket", "_count", "_sum"] if family.kind == "histogram" else [family.ending]
        served.update({f"{metrics.PREFIX}{family.name}{end}": set(family.labels) for end in ends})
    told = _told_of_a_full_log()
    asked = set[str]()
    for target in targets:
        expression = target["expr"]
        names = set(re.findall(r"diagnose_\w+", expression))
        asked |= names
        assert names <= set(served), expression
        labels = set[str].union(*(served[name] for name in names))
        for name, matchers in re.findall(r"(diagnose_\w+)\{([^}]*)\}", expression):
            pairs = re.findall(r'(\w+)=~?"([^"]*)"', matchers)
            assert {label for label, _ in pairs} <= served[name]
            for label, value in pairs:
                assert value == "$rank" or all(f'{label}="{one}"' in told for one in value.split("|")), value
        grouped = re.findall(r"\b(?:by|on) \((\w+)\)", expression)
        assert {*grouped, *re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])} <= labels
    assert len(asked) > 12


def _told_of_a_full_log() -> str:
    columns = {name: Column(40, S, S, S, ((400, 40),)) for name in ("step", "loader", "device")}
    host = {name: Column(40, MS, MS, MS) for name in ("forward", "backward", "optimizer")}
    full = replace(window(1, **FIGURES), columns={**columns, **host})
    return text([rank_now(log(window(0), full))])
