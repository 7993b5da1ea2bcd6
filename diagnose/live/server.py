"""Serves metrics to Prometheus while a run lasts."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from diagnose.live import metrics
from diagnose.live.now import RankNow
from diagnose.reports.exposition import CONTENT_TYPE

HOST = "127.0.0.1"

MOST_AT_ONCE = 8
"""Requests (our choice)."""

ANSWERING_S = 5.0
"""Of a client that sends nothing, or takes nothing (our choice)."""


class CannotServe(Exception):
    """Why, as a sentence or two."""


def address_of(text: str) -> tuple[str, int]:
    """Of `[HOST:]PORT`. Raises CannotServe.

    >>> address_of(":9400"), address_of("9400"), address_of("[::1]:9400")
    (('127.0.0.1', 9400), ('127.0.0.1', 9400), ('::1', 9400))
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise CannotServe(f"{text} is no [HOST:]PORT. Write 9400, :9400 or 0.0.0.0:9400.")
    return host.removeprefix("[").removesuffix("]") or HOST, int(port)


class MetricsServer(ThreadingTCPServer):
    """Answers GET /metrics, in threads of its own, from now on. Before a step is known there are no series but one."""

    name = "serving metrics"
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, text: str) -> None:
        """At `[HOST:]PORT`. Raises CannotServe."""
        host, port = address_of(text)
        try:
            self.address_family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            super().__init__((str(address[0]), port), _Handler)
        except OSError as error:
            why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise CannotServe(f"Cannot serve metrics at {text}: {why}. Name another one with --metrics.") from error
        self.content = metrics.render(()).encode()
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        threading.Thread(target=self.serve_forever, name="diagnose-metrics", daemon=True).start()

    @property
    def url(self) -> str:
        """Where metrics are."""
        host, port = self.server_address[:2]
        return f"http://{f'[{host!s}]' if ':' in str(host) else str(host)}:{port}/metrics"

    def show(self, ranks: Sequence[RankNow]) -> None:
        """From now on these are told."""
        self.content = metrics.render(ranks).encode()

    def close(self) -> None:
        """The run has ended: the port is free again."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, unless there are too many: a client that is turned away asks again."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As its base, and count it."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no matter of the run's."""


class _Handler(BaseHTTPRequestHandler):
    server: MetricsServer
    timeout = ANSWERING_S
    server_version, sys_version = "diagnose", ""

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(HTTPStatus.NOT_FOUND)
            return
        content = self.server.content
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Nothing: standard error is the script's."""
