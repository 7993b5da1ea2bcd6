"""Documents are dealt out as they come, so that in every step the rank with the shorter one waits for the other."""

from __future__ import annotations

import itertools
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel

from sample_traces import harness

SHORT = {"weak": 600, "medium": 384, "strong": 32}
LONG = 768
DEALT = "LS SL SS LS SL"
TIMES = {"cpu": 1, "cuda": 64}


def main() -> None:
    """Train, on one document a step and rank."""
    run = harness.start()
    lengths = {"S": SHORT[run.level], "L": LONG}
    times = TIMES[run.device.type]
    documents = [torch.randint(256, (times * lengths[one],), device=run.device) for one in DEALT.replace(" ", "")]
    if run.fixed:
        documents.sort(key=len)
    model = torch.nn.Sequential(
        torch.nn.Embedding(256, 256), torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256)
    )
    ddp = DistributedDataParallel(model.to(run.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.01)
    for document in itertools.cycle(documents[run.rank :: run.ranks]):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(ddp(document[:-1]), document[1:]).backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Of two ranks now one, now the other computes longer."""
    pairs = list(zip(*(_computed_us(trace.with_name(f"rank{rank}.trace.json.gz")) for rank in range(2)), strict=True))
    more = [(one - other) / sum(map(sum, pairs)) for one, other in pairs]
    harness.expect(sum(map(abs, more)) > 0.06, "both ranks compute alike")
    harness.expect(min(more) < -0.01 and max(more) > 0.01, "it is always the same rank that computes longer")


def _computed_us(trace: Path) -> list[float]:
    """In each step."""
    spans = harness.spans(trace)
    kernels = [span for span in spans if span.get("cat") == "kernel" and "nccl" not in span["name"]]
    computing = kernels or [span for span in spans if span["name"] in ("aten::addmm", "aten::mm")]
    return [sum(span["dur"] for span in harness.within(computing, step)) for step in harness.steps(trace)]


if __name__ == "__main__":
    main()
