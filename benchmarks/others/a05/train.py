"""Skip-gram with negative sampling on a synthetic Zipf corpus."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)

VOCAB = 80000
DIM = 48
BATCH = 96
NEG = 4


class SkipGram(nn.Module):
    def __init__(self):
        super().__init__()
        self.center = nn.Embedding(VOCAB, DIM)
        self.context = nn.Embedding(VOCAB, DIM)
        nn.init.normal_(self.center.weight, std=0.1)
        nn.init.normal_(self.context.weight, std=0.1)

    def forward(self, c, pos, neg):
        vc = self.center(c)
        pos_score = (vc * self.context(pos)).sum(-1)
        neg_score = torch.bmm(self.context(neg), vc.unsqueeze(-1)).squeeze(-1)
        return -(F.logsigmoid(pos_score) + F.logsigmoid(-neg_score).sum(-1)).mean()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    corpus = torch.from_numpy((rng.zipf(1.3, size=200_000) % VOCAB).astype(np.int64))

    model = SkipGram()
    opt = torch.optim.SGD(model.parameters(), lr=0.5)

    for step in range(args.steps):
        at = torch.randint(2, len(corpus) - 2, (BATCH,))
        shift = torch.randint(1, 3, (BATCH,))
        neg = torch.randint(0, VOCAB, (BATCH, NEG))
        loss = model(corpus[at], corpus[at + shift], neg)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print("step %d  loss %.6f" % (step + 1, loss.item()))


if __name__ == "__main__":
    main()
