"""Small traces for tests, drawn in microseconds and read by the real reader."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from diagnose.facts.core.base import Facts
from diagnose.source import ranks
from diagnose.trace.intervals import IntArray
from diagnose.trace.model import Rank

MAIN = 100  # Thread (and process) of everything on the host, unless said otherwise.


class Drawing:
    """A trace in the making: times are in us from 0, `start` to `end`."""

    def __init__(self, **header: Any) -> None:
        self.header: dict[str, Any] = {"schemaVersion": 1, **header}
        self.events: list[dict[str, Any]] = []
        self._correlation = 0

    def span(self, cat: str, name: str, start: float, end: float, tid: Any = MAIN, **args: Any) -> Drawing:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": MAIN,
                "tid": tid,
                "ts": start,
                "dur": end - start,
                "args": args,
            }
        )
        return self

    def step(self, number: int, start: float, end: float) -> Drawing:
        return self.span("user_annotation", f"ProfilerStep#{number}", start, end)

    def op(self, name: str, start: float, end: float, tid: Any = MAIN, **args: Any) -> Drawing:
        return self.span("cpu_op", name, start, end, tid, **args)

    def frame(self, name: str, start: float, end: float, tid: Any = MAIN) -> Drawing:
        return self.span("python_function", name, start, end, tid, **{"Python id": len(self.events)})

    def call(self, name: str, start: float, end: float, tid: Any = MAIN, **args: Any) -> Drawing:
        self._correlation += 1
        return self.span("cuda_runtime", name, start, end, tid, correlation=self._correlation, **args)

    def launch(
        self,
        name: str,
        call: tuple[float, float],
        run: tuple[float, float],
        *,
        stream: int = 7,
        device: int = 0,
        tid: Any = MAIN,
        api: str = "cudaLaunchKernel",
        cat: str = "kernel",
        **args: Any,
    ) -> Drawing:
        """A runtime call and the device work that it starts."""
        self.call(api, *call, tid=tid)
        return self.work(name, run, stream=stream, device=device, cat=cat, correlation=self._correlation, **args)

    def copy(
        self,
        kind: str,
        call: tuple[float, float],
        run: tuple[float, float],
        size: int,
        *,
        tid: Any = MAIN,
        stream: int = 7,
    ) -> Drawing:
        return self.launch(
            f"Memcpy {kind}", call, run, stream=stream, tid=tid, api="cudaMemcpyAsync", cat="gpu_memcpy", bytes=size
        )

    def work(
        self, name: str, run: tuple[float, float], *, stream: int = 7, device: int = 0, cat: str = "kernel", **args: Any
    ) -> Drawing:
        args = {"device": device, "stream": stream, **args}
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": device,
                "tid": stream,
                "ts": run[0],
                "dur": run[1] - run[0],
                "args": args,
            }
        )
        return self

    def text(self) -> str:
        return json.dumps({**self.header, "traceEvents": self.events})

    def write(self, path: Path) -> Path:
        path.write_text(self.text())
        return path

    def rank(self) -> Rank:
        with tempfile.TemporaryDirectory() as folder:
            return ranks.read(self.write(Path(folder) / "trace.json"))

    def facts(self, step_range: tuple[int, int] | None = None) -> Facts:
        return Facts(self.rank(), step_range)


def two_steps() -> Drawing:
    """Steps 1 and 2 are used: 0 to 100 and 100 to 200 us, on the device as on the host."""
    draw = Drawing().step(0, -100, 0).launch("first", (-50, -49), (-40, 0))
    for number, end in ((1, 100), (2, 200)):
        draw.step(number, end - 100, end).launch("last", (end - 4, end - 3), (end - 1, end))
    return draw


def step_to_fill() -> Drawing:
    """A step that ends on the device at 0, and one from 0 to 100 us, to be filled."""
    draw = Drawing().step(0, -50, -10).launch("first", (-45, -44), (-20, 0)).step(1, -10, 60)
    return draw.launch("last", (50, 51), (99, 100))


def names(facts: Facts, ids: IntArray) -> list[str]:
    return [str(name) for name in facts.rank.spans["name"].iloc[ids]]
