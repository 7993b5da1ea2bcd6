"""A language model in bf16 has a vocabulary of 50,257 words, which is no multiple of 8."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

ANSWERS = {"weak": 384, "medium": 1536, "strong": 8192}  # Tokens that the loss is about, of all.

WORDS, PADDED = 50257, 50304


def main() -> None:
    """Train."""
    run = harness.start()
    small = run.device.type == "cpu"
    width, tokens, answers = (16, 32, 16) if small else (2048, 8192, ANSWERS[run.level])
    vocabulary = PADDED if run.fixed else WORDS
    with run.device:
        model = torch.nn.Sequential(
            torch.nn.Embedding(vocabulary, width),
            torch.nn.Linear(width, 4 * width, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width, bias=False),
            torch.nn.Linear(width, 4 * width, bias=False),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width, bias=False),
        )
        head = torch.nn.Linear(width, vocabulary, bias=False)
        words = torch.randint(WORDS, (tokens + 1,))
    optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
    for _ in run:
        optimizer.zero_grad()
        with torch.autocast(run.device.type, torch.bfloat16):
            logits = head(model(words[:-1])[-answers:])
            loss = torch.nn.functional.cross_entropy(logits, words[-answers:])
        loss.backward()
        optimizer.step()


def verify(trace: Path) -> None:
    """The recording with shapes, which lies beside, has 16-bit products of the odd size."""
    detail = harness.spans(trace.with_name("rank0.detail.json.gz"))
    products = [span["args"] for span in detail if span["name"] == "aten::mm" and "Input Dims" in span["args"]]
    odd = [args for args in products if any(WORDS in shape for shape in args["Input Dims"])]
    harness.expect(len(odd) >= 3, "no products of the odd size")
    harness.expect(all("c10::BFloat16" in args["Input type"] for args in odd), "they are not in bf16")


if __name__ == "__main__":
    main()
