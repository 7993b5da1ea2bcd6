"""Sequence tagger (embedding + dilated convs) with a running confusion matrix."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)

PAD = -100
TAGS = 9
VOCAB = 500


class Tagger(nn.Module):
    def __init__(self, dim=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, dim)
        self.c1 = nn.Conv1d(dim, dim, 3, padding=1)
        self.c2 = nn.Conv1d(dim, dim, 3, padding=2, dilation=2)
        self.out = nn.Linear(dim, TAGS)

    def forward(self, ids):
        h = self.emb(ids).transpose(1, 2)
        h = F.relu(self.c1(h))
        h = h + F.relu(self.c2(h))
        return self.out(h.transpose(1, 2))


class Confusion:
    def __init__(self, n):
        self.n = n
        self.mat = torch.zeros(n, n, dtype=torch.long)

    def update(self, gold, pred):
        for b in range(gold.size(0)):
            for t in range(gold.size(1)):
                g = gold[b, t].item()
                if g == PAD:
                    continue
                self.mat[g, pred[b, t].item()] += 1

    def accuracy(self):
        return self.mat.diag().sum().item() / max(1, self.mat.sum().item())


def synthetic(n, length):
    ids = torch.randint(0, VOCAB, (n, length))
    prev = torch.cat([ids[:, :1], ids[:, :-1]], dim=1)
    tags = (ids % 3) * 3 + prev % 3
    lens = torch.randint(length // 2, length + 1, (n, 1))
    tags[torch.arange(length)[None, :] >= lens] = PAD
    return TensorDataset(ids, tags)


def main(args):
    torch.manual_seed(99)
    loader = DataLoader(synthetic(1024, 40), batch_size=24, shuffle=True, drop_last=True)
    model = Tagger()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    conf = Confusion(TAGS)
    step, epoch = 0, 0
    while step < args.steps:
        epoch += 1
        for ids, tags in loader:
            logits = model(ids)
            loss = F.cross_entropy(logits.reshape(-1, TAGS), tags.reshape(-1), ignore_index=PAD)
            opt.zero_grad()
            loss.backward()
            opt.step()
            conf.update(tags, logits.argmax(-1))
            step += 1
            if step % 100 == 0 or step == args.steps:
                print(f"epoch {epoch} step {step} loss {loss.item():.6f} acc {conf.accuracy():.4f}")
            if step == args.steps:
                break


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    main(parser.parse_args())
