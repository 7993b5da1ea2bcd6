"""Record the sample: a small multilayer perceptron trained on one CPU thread under plain `torch.profiler`.

Run `python make.py` in an environment with torch; it writes `trace.json.gz` beside itself and verifies it.
`verify` needs the standard library only.
"""

from __future__ import annotations

import getpass
import gzip
import json
import re
import socket
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

TRACE = Path(__file__).with_name("trace.json.gz")

SEED = 0
BATCH = 128
FEATURES = 784
HIDDEN = 1024
CLASSES = 10
WAIT, WARMUP, ACTIVE = 2, 2, 6  # steps; the profiler records the active ones

PRIVATE_KEYS = ("traceName", "host_name")  # metadata that names the machine or a path on it
ABSOLUTE_PATH = re.compile(r"(?<![\w.])/(?:home|mnt|opt|root|tmp|Users|usr|var|work)\b")


def train(profile: torch.profiler.profile) -> None:
    """Train on generated digits-like data, telling the profiler where each step ends."""
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    steps = WAIT + WARMUP + ACTIVE
    images = torch.rand(steps * BATCH, FEATURES)
    labels = torch.randint(CLASSES, (steps * BATCH,))
    loader = DataLoader(TensorDataset(images, labels), batch_size=BATCH, shuffle=True, num_workers=0)
    model = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with profile:
        for batch, target in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(batch), target)
            loss.backward()
            optimizer.step()
            profile.step()


def record(path: Path) -> None:
    """Profile the training and write its trace, without what names this machine, as gzipped JSON."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder, "trace.json")
        profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU],
            schedule=torch.profiler.schedule(wait=WAIT, warmup=WARMUP, active=ACTIVE, repeat=1),
            on_trace_ready=lambda done: done.export_chrome_trace(str(raw)),
            record_shapes=True,
        )
        train(profile)
        trace: dict[str, Any] = json.loads(raw.read_text())
    for key in PRIVATE_KEYS:
        trace.pop(key, None)
    text = json.dumps(trace, separators=(",", ":"))
    for name in (socket.gethostname(), getpass.getuser()):
        _expect(not re.search(rf"\b{re.escape(name)}\b", text), f"the trace names {name!r}")
    path.write_bytes(gzip.compress(text.encode(), mtime=0))


def verify(path: Path) -> None:
    """Raise AssertionError unless the trace shows what this sample is named for, and nothing private."""
    text = gzip.decompress(path.read_bytes()).decode()
    _expect(not ABSOLUTE_PATH.search(text), "the trace holds a path")
    trace = json.loads(text)
    _expect(trace.keys().isdisjoint(PRIVATE_KEYS), f"the trace has one of {PRIVATE_KEYS}")
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    names = Counter(span["name"].split("#")[0] for span in spans if span["cat"] == "user_annotation")
    _expect(names["ProfilerStep"] == ACTIVE, f"{names['ProfilerStep']} steps, not {ACTIVE}")
    _expect(names["Optimizer.step"] == ACTIVE, f"{names['Optimizer.step']} optimizer steps, not {ACTIVE}")
    fetches = sum("DataLoaderIter.__next__" in span["name"] for span in spans)
    _expect(fetches >= ACTIVE, f"{fetches} fetches from the loader, fewer than {ACTIVE}")
    ops = Counter(span["name"] for span in spans if span["cat"] == "cpu_op")
    _expect(ops["aten::addmm"] == 3 * ACTIVE, f"{ops['aten::addmm']} linear layers, not 3 a step")
    _expect(not any(span["cat"] == "kernel" for span in spans), "a GPU kernel in a CPU run")


def _expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


if __name__ == "__main__":
    record(TRACE)
    verify(TRACE)
