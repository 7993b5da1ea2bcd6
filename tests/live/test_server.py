"""Serving metrics: where they were asked for, until the run ends."""

import urllib.error
import urllib.request
from pathlib import Path

import click
import pytest

from diagnose.cli import live
from diagnose.live.now import rank_now
from diagnose.live.server import CannotServe, MetricsServer, address_of
from tests.live.drawn import log, window


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
    with pytest.raises(CannotServe, match=rf"^Cannot serve metrics at :{port}: the port is taken\. Name another"):
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
    assert str(refusal.value) == f"{said}. Install it with: pip install 'torch-diagnose[torch,live]'."
