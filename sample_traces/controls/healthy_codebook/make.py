"""An autoencoder whose codes are those of a book, which follows the codes it is asked for by moving averages."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 768, "medium": 1024, "strong": 1280}
ROWS, FEATURES, BATCH, PARTS, CODES, SIZE, KEPT = 4096, 256, 192, 4, 128, 32, 0.99


def main() -> None:
    """Train."""
    run = harness.start()
    width = WIDTH[run.level]
    encoder = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, width),
        torch.nn.SiLU(),
        torch.nn.Linear(width, PARTS * SIZE),
    ).to(run.device)
    decoder = torch.nn.Sequential(
        torch.nn.Linear(PARTS * SIZE, width),
        torch.nn.SiLU(),
        torch.nn.Linear(width, FEATURES),
    ).to(run.device)
    weights = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=0.0005, fused=True)
    data = torch.randn(ROWS, FEATURES, device=run.device)
    book = torch.randn(CODES, SIZE, device=run.device)
    sums, uses = book.clone(), torch.ones(CODES, device=run.device)
    one = torch.ones(BATCH * PARTS, device=run.device)
    number, told = 0, []
    while True:
        number += 1
        rows = data[torch.randint(ROWS, (BATCH,), device=run.device)]
        codes = encoder(rows).view(-1, SIZE)
        with torch.no_grad():
            chosen = torch.addmm(book.square().sum(dim=1), codes, book.T, alpha=-2).argmin(dim=1)
            nearest = book[chosen]
        passed = codes + (nearest - codes).detach()
        made = decoder(passed.view(BATCH, PARTS * SIZE))
        loss = torch.nn.functional.mse_loss(made, rows) + 0.25 * torch.nn.functional.mse_loss(codes, nearest)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            sums.mul_(KEPT).index_add_(0, chosen, codes, alpha=1 - KEPT)
            uses.mul_(KEPT).index_add_(0, chosen, one, alpha=1 - KEPT)
            torch.div(sums, uses[:, None] + 1e-5, out=book)
        if number % 25 == 0:
            told.append(f"{number}: {loss.item():.4f} with {int((uses > 0.1).sum())} codes in use")
        if run.stepped():
            return


def verify(trace: Path) -> None:
    """Every step has four layers, one look into the book, and one update of all weights."""
    number = len(harness.steps(trace))
    layers = [span for span in harness.spans(trace) if span["name"] == "aten::linear"]
    harness.expect(len(layers) >= 4 * (number - 1), "few layers")
    harness.expect(len(harness.named(trace, "aten::argmin")) <= number, "codes are looked for more than once")
    harness.expect(len(harness.named(trace, "aten::_fused_adamw_")) <= number, "weights are updated one by one")


if __name__ == "__main__":
    main()
