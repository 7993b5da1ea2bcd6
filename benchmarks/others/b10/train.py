"""Feed-forward n-gram language model with per-row gradient-norm clipping."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class NGramLM(nn.Module):
    def __init__(self, vocab, order, dim, hidden):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.fc1 = nn.Linear(order * dim, hidden)
        self.fc2 = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, vocab)

    def forward(self, ctx):
        h = self.emb(ctx).flatten(1)
        h = torch.tanh(self.fc1(h))
        h = torch.tanh(self.fc2(h))
        return self.out(h)


def clip_rows_(params, max_norm):
    """Limit the gradient norm of every row (neuron / token) on its own."""
    for p in params:
        if p.grad is None or p.dim() < 2:
            continue
        for row in p.grad:
            norm = row.norm()
            if norm > max_norm:
                row.mul_(max_norm / norm)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)

    vocab, order = 300, 4
    trans = rng.dirichlet(np.full(vocab, 0.02), size=vocab).cumsum(1)
    text = [0]
    for u in rng.random(20_000):
        text.append(min(int(np.searchsorted(trans[text[-1]], u)), vocab - 1))
    text = torch.tensor(text)
    grams = text.unfold(0, order + 1, 1)

    model = NGramLM(vocab, order, 24, 96)
    opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    gen = torch.Generator().manual_seed(1)

    for step in range(args.steps):
        b = grams[torch.randint(0, len(grams), (128,), generator=gen)]
        loss = F.cross_entropy(model(b[:, :order]), b[:, order])
        opt.zero_grad()
        loss.backward()
        clip_rows_(model.parameters(), 0.02)
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
