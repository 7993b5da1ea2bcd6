"""Traces drawn in a few lines of text: the notation of the examples in rule files.

    3 steps of 100                           # ProfilerStep#0 to #2 on the main thread, 100 ms each
    cpu           load 0-60 | aten::mm 60-61 | sync 61.2-100
    cpu autograd  aten::add 70-71            # another host thread, by its name
    gpu           sgemm 60-100 @60           # stream 7, launched by a call that starts at 60
    gpu 20        h2d 0-5 @0-1 pinned 64MB   # stream 20, launched by a call from 0 to 1

`trace` makes of it what torch.profiler would have written, for the real reader to read. Times are in ms, exact to the
ns. `#` after a space begins a comment; indentation, blank lines and the order of lines mean nothing. The lines:
    N steps of MS       everything happens once per step, each MS after the one before; if not said: once, in no step
    device NAME         any part of a name in DEVICES that no other has, as A100, V100, T4, MI300X, or 1080 (a device
                        whose peak rates diagnose does not know); if not said: H100
    rank N of M         this is rank N of a distributed run
    machine NAME of N devices               it runs there; if not said: the devices that do work are all there are
    N threads, M cores  the CPU trains, with so many threads; diagnose profile recorded it on a machine of so many cores
                        There may follow `, flags avx2 fma`, as Linux names what the processor has
    rival NAME 0.7      a thread of Python beside the training computes for this share of the time, it noted besides
    timed MS MS ...     what steps took without the profiler; if not said, and threads are: as long as those drawn
    batches 16x84, 40 needed, 26 filled     it saw 16 rows padded to 84; so many places are needed, and used on average
    batches made in 0.2 of 12               of 12 ms until a batch was there, making it took 0.2. There may follow
                                            `, computing 0.1`, its CPU time; `, sampler 9`, which took so much of
                                            the 12; `, handed over in 5, 64 tensors of 8 MB`,
                                            where it was made before; `, by 2 workers`; `, late`, where it was after;
                                            `, numpy.load 90%`, what a line calls that takes so much of it
    epochs of 32 steps of 50, 90 between, 680 starting  it saw whole epochs before, whose steps take 50 ms on average
                                            with 90 ms between epochs, and 680 until workers have the first batch
    fetched 80 MB a step                    it saw how much memory the process touched first, without the profiler
    cudnn.benchmark off, cudnn.benchmark on     it saw that setting of PyTorch's
    values aten::mm | aten::mul as 0        it saw which ops of a step make equal values: the second what op 0 made.
                                            Or `takes 0,1`; `always`, in each step; `back`; `sparse 990`, a matrix
                                            whose zeros are 990 thousandths; `looked 0`, as it depends on rows that
                                            op 0 took; `carried 0`, as it takes what op 0 of the step before made.
                                            For 0 may stand `-`: what no op made
    memory 10 of 20 GB  the allocator has so much in use of what it holds, when a step begins; it may go on with
                        `, 1 GB more a step`
    sync events         `wait` and the calls that block have cuda_sync events too, as with enable_cuda_sync_events
    cpu [THREAD] ITEMS  host spans, on the thread `main` (it has the steps) or another
    gpu [STREAM] ITEMS  device work, on stream 7 (AMD: 0), or 20, or 1:20, which is stream 20 of device 1
    ---                 what follows is another rank: everything is said again
ITEMS are separated by `|`. An item is NAME START-END, then words in any order. "Quotes" hold what has spaces.

Names on `cpu`, for which HOST_NAMES has what Kineto writes; any other name is itself, and its form says what it is
    load, next                                  fetching a batch, in this process or from workers
    optimizer, zero_grad, compile, gc, save     of AdamW; by torch.compile; garbage collection; torch.save
    sync, device_sync, event_sync               calls that block until a stream, the device, an event is done
    record, wait, malloc, free                  calls: record an event, let a stream wait for it, cudaMalloc, cudaFree
    cudaMemGetInfo, hipFree, cuLaunchKernel     a runtime or driver call; on AMD cuda... becomes hip...
    "train.py(12): main", "nn.Module: Linear"   a Python frame; with none drawn, no stacks were recorded
    aten::mm, MmBackward0, record_param_comms   an op
    "Lazy Function Loading", ...                work of the profiler itself, named as CUPTI does
    nccl:all_reduce, FSDP::forward, the rest    a user annotation
Names on `gpu`, for which KERNELS and COPIES have what Kineto writes; any other name is a kernel's own
    sgemm (without tensor cores), tf32_gemm, bf16_gemm, fp16_gemm, conv, nchw2nhwc, flash, softmax, layernorm,
    pointwise, cast, fill, reduce, cat, adam, foreach, nccl or allreduce, allgather, reduce_scatter
    h2d, d2h, d2d, p2p, memset

Words of any item
    in 1,3              only in these steps, counted from 0
    not in 0            in all steps but these
    x100 every 0.02     100 of them, each 0.02 ms after the one before; without `every` back to back
    KEY=VALUE           an argument of the event, as KEYS names it, or Kineto. VALUE is JSON without spaces, or text:
                        shapes=[[8,16],[16,4]] stack="train.py(3): f;train.py(9): g" "registers per thread"=64
    stream=20           of `sync`: the stream it waits for; of `record` (an event) and `wait` (for the event that was
                        recorded last before): the stream that does so; if not said: 7
Words of device work
    @START, @START-END  the launching call; its end, if not said: 0.005 ms later. Without @ it was not recorded
    from THREAD         the thread of the call; if not said: main
    graph               the call is a cudaGraphLaunch, the same for all work with this @ and thread
    pageable, pinned    host memory of h2d and d2h; if not said: pageable. ROCm does not tell
    64MB, 4KB, 512B     size of a copy or memset, in decimal units; if not said: not recorded
    blocks=8            size of a kernel, in blocks of 256 threads; if not said: it fills the device
Refused are host spans that overlap without nesting, or lie inside a call; work that overlaps on its stream, or runs in
another order than it was launched; work before its launch. What is named in capitals is in `recorder`.
"""

from __future__ import annotations

import json
import re
from itertools import groupby
from typing import Any

from diagnose.synthetic import manifest
from diagnose.synthetic.kineto import COPIES, DEVICES, KEYS, Recorder, launch_of
from diagnose.trace.model import Context, ValueGraph

_STEPS, _NAME = r"\d+(?:,\d+)*", r'"[^"]+"|[^\s"]+'
_TOKEN = re.compile(r'#.*|\||(?:"[^"]*"|[^\s"|])+|"')
_ITEM = re.compile(
    rf"(?:(?P<track>{_NAME}) )?(?P<name>{_NAME}) (?P<start>{manifest.TIME})-(?P<end>{manifest.TIME})(?: |\Z)"
)
_WORD = re.compile(
    rf"""(?: in\ (?P<only>{_STEPS})
           | not\ in\ (?P<never>{_STEPS})
           | x(?P<times>[1-9]\d*)
           | every\ (?P<every>{manifest.TIME})
           | @(?P<call>{manifest.TIME})(?:-(?P<until>{manifest.TIME}))?
           | from\ (?P<thread>{_NAME})
           | (?P<graph>graph)
           | (?P<memory>pageable|pinned)
           | (?P<size>\d+)(?P<unit>[KMG]?)B
           | blocks=(?P<blocks>[1-9]\d*)
           | (?P<key>"[^"]+"|\w+)=(?P<value>(?:"[^"]*"|\S)+)
         )(?:\ |\Z)""",
    re.VERBOSE,
)
_ANY = {"only", "never", "times", "every", "key", "value"}
_WORK = _ANY | {"call", "until", "thread", "graph"}
_MEMORY = re.compile(r"memory ([\d.]+) of ([\d.]+) GB(?:, ([\d.]+) GB more a step)?")
_LAUNCH_NS = 5_000


class DrawingError(ValueError):
    """What is wrong with a drawing, and in which line, in one sentence."""


def ranks(text: str) -> list[str]:
    """The drawing of each rank."""
    return re.split(r"(?m)^ *---.*$", text)


def context(text: str, rank: int, ranks: int) -> Context | None:
    """What `diagnose profile` would have noted of this rank of a drawing; None if it did not record it."""
    return manifest.context(text, rank, ranks, _drawn(text).period_ns) if manifest.is_noted(text) else None


def values(text: str) -> ValueGraph | None:
    """The graph of equal values that `diagnose profile` would have seen; None if none is drawn. Raises DrawingError."""
    try:
        return manifest.values(text)
    except (ValueError, IndexError) as error:
        raise DrawingError(f"values: {error}") from None


def trace(text: str) -> bytes:
    """The drawing of one rank as Kineto's chrome-trace JSON. Raises DrawingError.

    >>> synthetic = json.loads(trace("gpu  sgemm 1-5 @0.5 | h2d 5-6 pinned 8KB"))
    >>> for event in synthetic["traceEvents"][:3]:
    ...     print(event["ts"], event["dur"], event["cat"], event["name"])
    500.0 5.0 cuda_runtime cudaLaunchKernel
    1000.0 4000.0 kernel ampere_sgemm_128x64_nn
    5000.0 1000.0 gpu_memcpy Memcpy HtoD (Pinned -> Device)
    """
    try:
        return json.dumps(_drawn(text).recorder.document()).encode()
    except ValueError as error:
        raise DrawingError(str(error)) from None


def _drawn(text: str) -> _Drawing:
    """The drawing of one rank. Lines with items are read last, as all settings hold for them. Raises DrawingError."""
    drawing = _Drawing()
    lines = enumerate(text.splitlines(), 1)
    for number, line in sorted(lines, key=lambda line: line[1].split()[:1] in (["cpu"], ["gpu"])):  # rows last
        place = drawing.recorder.place = f"line {number} ({' '.join(line.split())})"
        try:
            drawing.read([token for token in _TOKEN.findall(line) if token[0] != "#"])
        except ValueError as error:
            raise DrawingError(f"{place}: {error}") from None
    drawing.fill_memory()
    return drawing


class _Drawing:
    """A drawing of one rank on its way into a Recorder."""

    def __init__(self) -> None:
        self.recorder = Recorder()
        self.steps, self.period_ns = 1, 0
        self.graphs: dict[tuple[str, int], int] = {}  # Correlations of cudaGraphLaunch calls, by thread and start.
        self.memory: tuple[int, int, int] | None = None  # Bytes: allocated and reserved, and more of both per step.

    def read(self, tokens: list[str]) -> None:
        """Take in a line. Raises ValueError."""
        match tokens:
            case []:
                pass
            case _ if '"' in tokens:
                raise ValueError("a quote is not closed")
            case ["cpu" | "gpu" as row, *rest]:
                self._row(row, rest)
            case [steps, "step" | "steps", "of", period] if re.fullmatch(r"[1-9]\d*", steps):
                self._mark_steps(int(steps), manifest.ns(period))
            case _ if not self._set(tokens):
                raise ValueError(
                    "a line is of cpu or gpu, N steps of MS, device NAME, rank N of M, N threads, M cores, rival NAME,"
                    " machine NAME of N devices, SHARE, memory A of B GB, or sync events"
                )

    def _set(self, tokens: list[str]) -> bool:
        """Whether the line is a setting of the recording; it then takes effect."""
        match tokens:
            case ["device" | "machine" as what, *words]:
                self._place(what, words)
            case ["rank", rank, "of", world] if rank.isdecimal() and world.isdecimal():
                self.recorder.rank = int(rank), int(world)
            case ["memory", *_] if found := _MEMORY.fullmatch(" ".join(tokens)):
                allocated, reserved, more = (round(float(size or 0) * 1e9) for size in found.groups())
                self.memory = allocated, reserved, more
            case ["sync", "events"]:
                self.recorder.sync_events = True
            case _:
                return manifest.is_noted(" ".join(tokens))
        return True

    def _place(self, what: str, words: list[str]) -> None:
        match what, words:
            case "machine", [name, "of", devices, "devices"] if devices.isdecimal():
                self.recorder.machine = name, int(devices)
            case "machine", _:
                raise ValueError("it is a machine NAME of N devices")
            case _:
                self.recorder.device = _device(" ".join(words))

    def _mark_steps(self, steps: int, period_ns: int) -> None:
        self.steps, self.period_ns = steps, period_ns
        for step in range(steps):
            start = step * period_ns
            self.recorder.span(f"ProfilerStep#{step}", "main", start, start + period_ns, {})

    def fill_memory(self) -> None:
        """Draw how much memory there is in use when each step begins."""
        if self.memory is not None:
            allocated, reserved, more = self.memory
            for step in range(self.steps):
                self.recorder.memory(step * self.period_ns, allocated + step * more, reserved + step * more)

    def _row(self, row: str, tokens: list[str]) -> None:
        track = None
        for is_bar, item in groupby(tokens, "|".__eq__):
            track = track if is_bar else self._draw(row, track, " ".join(item))

    def _draw(self, row: str, track: str | None, text: str) -> str:
        """Draw an item of a row in all its steps. `track`: the thread or stream; None: the item is the row's first, and
        may name it. Returns the track."""
        found = _ITEM.match(text)
        if not found or (track is not None and found["track"]):
            raise ValueError(f"{text} is no item, which is NAME START-END and then words, times in ms")
        track = track or (found["track"] or "").strip('"')
        name, start, end = found["name"].strip('"'), manifest.ns(found["start"]), manifest.ns(found["end"])
        known = _ANY if row == "cpu" else _WORK | ({"size", "unit", "memory"} if name in COPIES else {"blocks"})
        said, args = _words(text[found.end() :], known, name)
        if end < start:
            raise ValueError(f"{name} ends before it starts")
        every = manifest.ns(said["every"]) if "every" in said else end - start
        for step in _chosen(said, self.steps):
            for k in range(int(said.get("times", 1))):
                shift = step * self.period_ns + k * every
                if row == "cpu":
                    self.recorder.span(name, track or "main", start + shift, end + shift, args)
                else:
                    correlation = self._launch(name, start, step * self.period_ns if "graph" in said else shift, said)
                    self.recorder.work(name, track, start + shift, end + shift, correlation, said, args)
        return track

    def _launch(self, name: str, work_start: int, shift: int, said: dict[str, str]) -> int:
        """Draw the call that launches device work, if one is said. Returns its correlation, else 0."""
        if "call" not in said:
            return 0
        start, thread = manifest.ns(said["call"]), said.get("thread", "main")
        end = manifest.ns(said["until"]) if "until" in said else start + _LAUNCH_NS
        if not start <= min(end, work_start):
            raise ValueError(f"{name} starts before its launch, or the launch ends before it starts")
        at = thread, start + shift
        if "graph" not in said:
            return self.recorder.span(launch_of(name), *at, end + shift, {})
        if at not in self.graphs:
            self.graphs[at] = self.recorder.span("cudaGraphLaunch", *at, end + shift, {})
        return self.graphs[at]


def _device(part: str) -> str:
    """The name in DEVICES that has this part. Raises ValueError unless it is exactly one."""
    named = [name for name in DEVICES if part in name]
    if len(named) != 1:
        raise ValueError(f"the device is one of {', '.join(DEVICES)}")
    return named[0]


def _words(text: str, known: set[str], name: str) -> tuple[dict[str, str], dict[str, Any]]:
    """What the words of an item say, by their names in _WORD, and the arguments that they give."""
    said, args = dict[str, str](), dict[str, Any]()
    while text:
        word = _WORD.match(text)
        new = {key: value.strip('"') for key, value in word.groupdict().items() if value} if word else {}
        if not word or new.keys() - known:
            raise ValueError(f"{text.split()[0]} is no word of {name}")
        if "key" in new:
            args[KEYS.get(new["key"], new["key"])] = _value(word["value"])
        said |= new
        text = text[word.end() :]
    return said, args


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip('"')


def _chosen(said: dict[str, str], steps: int) -> list[int]:
    """The steps in which an item is, by its words `in` and `not in`."""
    every_step = set(range(steps))
    named = {word: {int(step) for step in said[word].split(",")} for word in ("only", "never") if word in said}
    if unknown := set().union(*named.values()) - every_step:
        raise ValueError(f"there is no step {min(unknown)}")
    return sorted(named.get("only", every_step) - named.get("never", set()))
