"""Servers that run here: a proxy that does what networks and storages under load do, and a plain web server."""

import functools
import http.client
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

SLOW_DOWN = (
    b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>'
)


@dataclass(frozen=True)
class Request:
    method: str
    path: str  # With its query.
    headers: Mapping[str, str]

    @property
    def range(self) -> str:
        """As in bytes=0-99; empty if all was asked for."""
        return self.headers.get("Range", "")

    @property
    def key(self) -> str:
        return "/".join(self.path.partition("?")[0].split("/")[2:])


Fault = Callable[[Request], int | None]
"""Called before a request is passed on: None lets it through, a status is answered instead, and a negative number
closes the connection after so many bytes of the answer's body."""


@dataclass
class Proxy:
    port: int
    requests: list[Request] = field(default_factory=list)
    fault: Fault = lambda request: None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, method: str, key: str) -> list[Request]:
        return [request for request in self.requests if request.method == method and request.key == key]


def times(count: int, answer: int, method: str, ending: str) -> Fault:
    """A fault of the first `count` requests of a kind."""
    left = [count]

    def fault(request: Request) -> int | None:
        if request.method != method or not request.key.endswith(ending) or not left[0]:
            return None
        left[0] -= 1
        return answer

    return fault


@contextmanager
def proxy(target: int) -> Iterator[Proxy]:
    """A proxy for the server at a port of this machine."""
    seen = Proxy(0)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def passed_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, dict(self.headers))
            seen.requests.append(request)
            what = seen.fault(request)
            if what is not None and what > 0:
                self.answer(what, {"Content-Type": "application/xml"}, b"" if self.command == "HEAD" else SLOW_DOWN)
                return
            onward = http.client.HTTPConnection("127.0.0.1", target)
            onward.request(self.command, self.path, body, dict(self.headers))
            answer = onward.getresponse()
            self.answer(answer.status, dict(answer.getheaders()), answer.read(), what)
            onward.close()

        def answer(self, status: int, headers: dict[str, str], body: bytes, cut: int | None = None) -> None:
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
            self.send_header("Content-Length", length)
            self.end_headers()
            self.wfile.write(body if cut is None else body[:-cut])
            self.close_connection = cut is not None

    for method in ("GET", "HEAD", "PUT", "POST", "DELETE"):
        setattr(Handler, f"do_{method}", Handler.passed_on)
    with _serving(Handler) as seen.port:
        yield seen


@contextmanager
def web_server(folder: Path, *cuts: int) -> Iterator[str]:
    """`python -m http.server`, which knows no ranges. The first answers are cut off after so many bytes."""
    left = list(cuts)

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def copyfile(self, source: object, outputfile: object) -> None:
            outputfile.write(source.read(left.pop(0) if left else -1))  # type: ignore[attr-defined]

    with _serving(functools.partial(Handler, directory=str(folder))) as port:
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _serving(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
