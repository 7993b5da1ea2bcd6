"""Serving metrics: where they were asked for, until the run ends."""

import importlib
import urllib.error
import urllib.request
from pathlib import Path

import click
import pytest

from diagnose.cli import live
from diagnose.live.metrics import CannotServe, MetricsServer, address_of
from diagnose.live.now import rank_now
from tests.live.boards import points
from tests.live.drawn import MS, log, window


def get(one: MetricsServer) -> str:
    with urllib.request.urlopen(one.url, timeout=30) as answer:
        content: bytes = answer.read()
    return content.decode()


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9400", ("127.0.0.1", 9400)),
        (":9400", ("127.0.0.1", 9400)),
        ("0.0.0.0:80", ("0.0.0.0", 80)),
        ("node7:1", ("node7", 1)),
        ("[::1]:9400", ("::1", 9400)),
    ],
)
def test_without_a_host_it_is_this_machine_only(text: str, address: tuple[str, int]) -> None:
    assert address_of(text) == address


@pytest.mark.parametrize("text", ["", ":", "port", "9400x", "-1", "65536", "1e3", "²", "host:"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(CannotServe, match="HOST:"):
        address_of(text)


def test_the_latest_figures_are_served_until_the_end_and_the_port_is_free_then() -> None:
    served = MetricsServer("0")
    port = served.url.removeprefix("http://127.0.0.1:").removesuffix("/metrics")
    assert [line for line in get(served).splitlines() if line[0] != "#"] == ["diagnose_watch_ranks 0.0"]
    served.show([rank_now(log(window(0)))])
    assert 'diagnose_watch_steps_total{rank="0"} 41.0\n' in get(served)
    served.show([rank_now(log(window(0), window(1)))])
    assert 'diagnose_watch_steps_total{rank="0"} 81.0\n' in get(served)
    with pytest.raises(CannotServe, match=rf"^Cannot serve metrics at :{port}: the port is taken\. Choose another"):
        MetricsServer(f":{port}")
    served.close()
    with pytest.raises(urllib.error.URLError):
        get(served)
    MetricsServer(port).close()


def test_a_host_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotServe, match=r"^Cannot serve metrics at 192\.0\.2\.1:9400: "):
        MetricsServer("192.0.2.1:9400")  # Of TEST-NET-1 (RFC 5737): nobody's address.


@pytest.mark.parametrize(
    ("metrics", "tensorboard", "said"),
    [
        ("0", None, "--metrics needs prometheus_client"),
        (None, Path("boards"), "--tensorboard needs torch and tensorboard"),
    ],
)
def test_packages_that_are_not_installed_are_named(
    monkeypatch: pytest.MonkeyPatch, metrics: str | None, tensorboard: Path | None, said: str
) -> None:
    monkeypatch.setattr(live, "find_spec", lambda _: None)
    with pytest.raises(click.ClickException) as refusal:
        live.shows(False, metrics, tensorboard, "run", print)
    assert str(refusal.value) == f"{said}. Run: pip install 'torch-diagnose[torch,live]'."


pytest.importorskip("torch")
pytest.importorskip("tensorboard")
TensorBoard = importlib.import_module("diagnose.live.tensorboard").TensorBoard


def test_each_window_is_a_point_once_it_is_complete(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path / "runs" / "one")
    windows = [window(at, waits_ns=at * MS, resident_bytes=8e8) for at in range(4)]
    written.show([rank_now(log(*windows[:2]))])
    folder = tmp_path / "runs" / "one" / "rank0"
    assert [step for _, step, _ in points(folder)] == [40]
    written.show([rank_now(log(*windows))])
    written.show([rank_now(log(*windows))])
    assert [step for _, step, _ in points(folder)] == [40, 80, 120]
    written.close()
    found = points(folder)
    assert [(at_s, step) for at_s, step, _ in found] == [(1_700_000_003.0 + k, 40 * (k + 1)) for k in range(4)]
    assert found[2][2] == pytest.approx(
        {
            "step_seconds/mean": 0.025,
            "step_seconds/median": 0.025,
            "step_seconds/p99": 0.025,
            "mean_seconds/forward": 0.004,
            "mean_seconds/backward": 0.0,
            "mean_seconds/optimizer": 0.0,
            "steps_per_second": 40.0,
            "share/loader": 0.08,
            "share/evaluation": 0.0,
            "share/save": 0.0,
            "share/collection": 0.0,
            "share/compilation": 0.0,
            "share/outside": 0.0,
            "process_and_device/resident_bytes": 8e8,
        }
    )


def test_each_rank_has_a_file_of_its_own(tmp_path: Path) -> None:
    written = TensorBoard(tmp_path)
    written.show([rank_now(log(window(0))), rank_now(log(window(0), window(1), rank=7))])
    written.close()
    assert [len(points(tmp_path / name)) for name in ("rank0", "rank7")] == [1, 2]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"Not a directory"):
        TensorBoard(tmp_path / "file" / "runs")
