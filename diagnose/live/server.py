"""Serves metrics to Prometheus while a run lasts."""

from __future__ import annotations

import errno

from prometheus_client import CollectorRegistry, start_http_server

from diagnose.live.metrics import Metrics

HOST = "127.0.0.1"


class CannotServe(Exception):
    """Why, as a sentence or two."""


def address_of(text: str) -> tuple[str, int]:
    """Of `[HOST:]PORT`. Raises CannotServe.

    >>> address_of(":9400"), address_of("9400"), address_of("[::1]:9400")
    (('127.0.0.1', 9400), ('127.0.0.1', 9400), ('::1', 9400))
    """
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 1 << 16):
        raise CannotServe(f"{text} is not [HOST:]PORT. Write 9400, :9400 or 0.0.0.0:9400.")
    return host.removeprefix("[").removesuffix("]") or HOST, int(port)


class MetricsServer(Metrics):
    """Answers in threads of its own, from now on. Before a step is known there are no series but one."""

    name = "serving metrics"

    def __init__(self, text: str) -> None:
        """At `[HOST:]PORT`. Raises CannotServe."""
        super().__init__()
        host, port = address_of(text)
        registry = CollectorRegistry()
        registry.register(self)
        try:
            self._server, _ = start_http_server(port, host, registry)
        except OSError as error:
            why = "the port is taken" if error.errno == errno.EADDRINUSE else error.strerror
            raise CannotServe(f"Cannot serve metrics at {text}: {why}. Choose another port with --metrics.") from error
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """The run has ended: the port is free again."""
        self._server.shutdown()
        self._server.server_close()
