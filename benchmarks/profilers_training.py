"""A training that profiles itself, in an order drawn by a seed: `python profilers_training.py SEED`."""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

draw = random.Random(int(sys.argv[1]))
torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
losses = [0.0]


def step() -> None:
    """One step of the training."""
    optimizer.zero_grad()
    loss = net(torch.randn(32, 64)).square().mean()
    loss.backward()
    optimizer.step()
    losses[0] += loss.item()


def options() -> dict[str, Any]:
    """What to record, drawn."""
    names = ("with_stack", "record_shapes", "profile_memory")
    return {"activities": [ProfilerActivity.CPU], **{name: draw.random() < 0.4 for name in names}}


def with_block(steps: int) -> None:
    """A profiler as a context."""
    with profile(**options()) as own:
        for _ in range(steps):
            step()
    assert own.events()


def with_schedule(steps: int) -> None:
    """A profiler with a schedule."""
    when = schedule(
        wait=draw.randint(0, 20),
        warmup=draw.randint(0, 6),
        active=draw.randint(1, 10),
        repeat=draw.randint(0, 3),
        skip_first=draw.randint(0, 10),
    )
    with profile(schedule=when, on_trace_ready=lambda own: own.key_averages(), **options()) as own:
        for _ in range(3 * steps):
            step()
            own.step()


def by_hand(steps: int) -> None:
    """A profiler that is started and stopped by hand."""
    own = profile(**options())
    own.start()
    for _ in range(steps):
        step()
    own.stop()
    assert own.events()


def stopped_while_warming_up(steps: int) -> None:
    """A profiler whose schedule may end in its warm-up."""
    own = profile(schedule=schedule(wait=1, warmup=draw.randint(1, 30), active=2), **options())
    own.start()
    for _ in range(steps):
        step()
        own.step()
    own.stop()


def in_a_thread(steps: int) -> None:
    """A profiler of another thread."""

    def work() -> None:
        with profile(**options()):
            time.sleep(0.05 * draw.random())
            torch.ones(10).sum()

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(steps):
        step()
    thread.join()


def of_autograd(steps: int) -> None:
    """The older profiler."""
    with torch.autograd.profiler.profile(use_kineto=draw.random() < 0.5):
        for _ in range(steps):
            step()


def plain(steps: int) -> None:
    """No profiler."""
    for _ in range(steps):
        step()


for _ in range(8):
    stretch = draw.choice(
        [plain] * 2 + [with_block] + [with_schedule] * 2 + [by_hand, stopped_while_warming_up, in_a_thread, of_autograd]
    )
    with record_function("stretch") if draw.random() < 0.5 else nullcontext():
        stretch(draw.randint(1, 40))
plain(60)
print("loss", losses[0])
