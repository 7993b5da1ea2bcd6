"""What a side is given as: which files make one recording, and which of several is shown."""

from pathlib import Path

import pytest

from diagnose import analyze
from diagnose.comparing.compare import recordings, side
from diagnose.comparing.runs import middle
from diagnose.source.base import InputError
from tests.cli.test_compare import trace
from tests.runs import run


def test_each_folder_of_a_pattern_is_a_recording_and_its_files_are_the_ranks_of_one(tmp_path: Path) -> None:
    for name in ("new-1/rank0.json", "new-2/rank0.json", "ranks/rank0.json", "ranks/rank1.json"):
        trace(tmp_path / name, 40)
    folders = [[str(tmp_path / "new-1")], [str(tmp_path / "new-2")]]
    assert recordings(str(tmp_path / "new-*")) == folders
    ranks = [str(tmp_path / "ranks" / f"rank{number}.json") for number in (0, 1)]
    assert recordings(str(tmp_path / "ranks" / "*.json")) == [ranks]


def test_a_name_that_looks_like_a_pattern_and_is_there_is_that_file(tmp_path: Path) -> None:
    named = trace(tmp_path / "run[1].json", 40)
    assert recordings(str(named)) == [[str(named)]]


def test_a_pattern_that_nothing_fits_is_refused_as_a_path_is(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        side(str(tmp_path / "new-*"), lambda paths: analyze(*paths))


def test_the_recording_with_the_middle_step_is_shown(tmp_path: Path) -> None:
    for number, copy_us in enumerate((90, 40, 60)):
        trace(tmp_path / f"new-{number}" / "rank0.json", copy_us)
    found = side(str(tmp_path / "new-*"), lambda paths: analyze(*paths))
    assert found.shown is not None
    assert found.shown.steps is not None
    assert found.shown.steps.step_time_ns.mean == 120_000


def test_the_middle_of_two_is_the_lower_one() -> None:
    assert middle([run(times_ns=(9,)), run(times_ns=(5,))]) == 1
    assert middle([run(times_ns=(9,)), run(times_ns=(5,)), run(times_ns=(7,))]) == 2


def test_reports_and_baselines_of_a_pattern_are_recordings_of_their_own(tmp_path: Path) -> None:
    for number in range(2):
        report = analyze(trace(tmp_path / f"trace-{number}.json", 40)).to_json()
        (tmp_path / f"report-{number}.json").write_text(report)
    found = side(str(tmp_path / "report-*.json"), lambda paths: analyze(*paths))
    assert len(found.baseline.runs) == 2
    (tmp_path / "kept.json").write_text(found.baseline.to_json())
    again = side(str(tmp_path / "kept.json"), lambda paths: analyze(*paths))
    assert again.baseline.runs == found.baseline.runs
    assert again.shown is None
