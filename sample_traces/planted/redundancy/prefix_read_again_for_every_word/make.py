"""A writer learns from texts and from rewards for its own, and reads one from its start again for each next word."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

LENGTH, GIVEN = {"weak": 8, "medium": 14, "strong": 24}, {"weak": 96, "medium": 40, "strong": 4}
WORDS, WIDTH, BATCH = 400, 128, 16


class Writer(torch.nn.Module):
    """Scores of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(WORDS, WIDTH)
        self.memory = torch.nn.GRU(WIDTH, WIDTH, batch_first=True)
        self.head = torch.nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor, state: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        """Read words, from a state on."""
        read, state = self.memory(self.embedding(words), state)
        return self.head(read), state


def main() -> None:
    """Train."""
    run = harness.start()
    length, given = LENGTH[run.level], GIVEN[run.level]
    model = Writer().to(run.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001, fused=True)
    worth = torch.rand(WORDS, device=run.device)
    texts = torch.randint(WORDS, (4096, length + 1), device=run.device)
    while True:
        text, state = torch.zeros(BATCH, length + 1, dtype=torch.int64, device=run.device), None
        with torch.no_grad():
            for number in range(length):
                if run.fixed:
                    scores, state = model(text[:, number : number + 1], state)
                else:
                    scores, _ = model(text[:, : number + 1])
                text[:, number + 1] = torch.multinomial(scores[:, -1].softmax(dim=-1), 1)[:, 0]
        reward = worth[text[:, 1:]].mean(dim=1)
        text = torch.cat([text, texts[torch.randint(len(texts), (given,), device=run.device)]])
        scores, _ = model(text[:, :-1])
        surprise = torch.nn.functional.cross_entropy(scores.transpose(1, 2), text[:, 1:], reduction="none").sum(dim=1)
        loss = ((reward - reward.mean()) * surprise[:BATCH]).mean() + surprise[BATCH:].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Texts of many lengths are read in every step."""
    trace = trace.with_name("rank0.detail.json.gz")  # Which has the shapes.
    read = [span for span in harness.spans(trace) if span["name"] == "aten::gru"]
    for step in harness.steps(trace)[:-1]:
        lengths = {span["args"]["Input Dims"][0][1] for span in harness.within(read, step)}
        harness.expect(len(lengths) >= min(LENGTH.values()), "a step reads one length, or words alone")


if __name__ == "__main__":
    main()
