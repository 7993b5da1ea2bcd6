"""Serving metrics: to those who ask properly, whatever others do."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from diagnose.live import server
from diagnose.live.now import rank_now
from diagnose.live.server import CannotServe, MetricsServer, address_of
from tests.live.drawn import log, window


@pytest.fixture(scope="module")
def served() -> Iterator[MetricsServer]:
    one = MetricsServer("0")
    yield one
    one.close()


def get(one: MetricsServer) -> str:
    with urllib.request.urlopen(one.url, timeout=30) as answer:
        assert answer.headers["Content-Type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        content: bytes = answer.read()
    return content.decode()


def sent(one: MetricsServer, request: bytes) -> bytes:
    """The first line that is answered."""
    with socket.create_connection(one.server_address[:2], timeout=30) as connection:
        connection.sendall(request)
        return connection.makefile("rb").readline()


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


def test_the_latest_figures_are_served(served: MetricsServer) -> None:
    assert served.server_address[0] == "127.0.0.1"
    served.show([])
    assert [one.name for one in text_string_to_metric_families(get(served))] == ["diagnose_watch_ranks"]
    served.show([rank_now(log(window(0)))])
    assert 'diagnose_watch_steps_total{rank="0"} 41\n' in get(served)
    served.show([rank_now(log(window(0), window(1)))])
    assert 'diagnose_watch_steps_total{rank="0"} 81\n' in get(served)


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b" 404 "),
        (b"GET /metrics/../etc HTTP/1.1\r\n\r\n", b" 404 "),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b" 501 "),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b" 501 "),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b" 414 "),
        (b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * 200 + b"\r\n", b" 431 "),
        (b"GET /metrics?name=x HTTP/1.1\r\n\r\n", b" 200 "),
    ],
)
def test_other_requests_are_refused(served: MetricsServer, request_line: bytes, status: bytes) -> None:
    assert status in sent(served, request_line)


def test_clients_that_say_nothing_or_go_away_hold_nobody_up(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], served: MetricsServer
) -> None:
    monkeypatch.setattr(server._Handler, "timeout", 0.2)
    silent = [socket.create_connection(served.server_address[:2]) for _ in range(server.MOST_AT_ONCE + 4)]
    for one in silent:
        one.settimeout(30)
        assert one.recv(1) == b""  # It was turned away, or given up after 0.2 s.
        one.close()
    hasty = socket.create_connection(served.server_address[:2])
    hasty.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
    hasty.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    hasty.close()
    assert "diagnose_watch_ranks " in get(served)
    assert capfd.readouterr().err == ""


def test_a_port_that_is_taken_is_named_and_is_free_again_at_the_end() -> None:
    first = MetricsServer("0")
    port = str(first.server_address[1])
    with pytest.raises(CannotServe, match=rf"^Cannot serve metrics at :{port}: the port is taken\. Name another"):
        MetricsServer(f":{port}")
    first.close()
    MetricsServer(port).close()
    with pytest.raises(urllib.error.URLError):
        get(first)


def test_a_host_that_is_not_there_is_named() -> None:
    with pytest.raises(CannotServe, match=r"^Cannot serve metrics at 192\.0\.2\.1:9400: "):
        MetricsServer("192.0.2.1:9400")  # Of TEST-NET-1 (RFC 5737): nobody's address.
