"""Ticket router: hashed character trigrams into a small MLP."""
import argparse
import random
import re
import zlib

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, Dataset

torch.set_num_threads(1)

N_FEATURES = 1024
TOPICS = {
    0: "invoice refund charge card billing payment amount receipt".split(),
    1: "login password account reset locked email verify token".split(),
    2: "crash error freeze screen update version install bug".split(),
    3: "delivery parcel courier address late tracking order lost".split(),
}
FILLER = "the a please my is was with from help me have you can not today since".split()


def make_corpus(n, seed):
    rng = random.Random(seed)
    rows = []
    for _ in range(n):
        label = rng.randrange(4)
        words = [rng.choice(TOPICS[label] if rng.random() < 0.3 else FILLER) for _ in range(24)]
        rows.append((" ".join(words).capitalize() + "!", label))
    return rows


def featurize(text):
    text = re.sub(r"[^a-z0-9 ]", " ", text.lower())
    text = " " + " ".join(text.split()) + " "
    vec = np.zeros(N_FEATURES, dtype=np.float32)
    for i in range(len(text) - 2):
        gram = text[i:i + 3]
        vec[zlib.crc32(gram.encode()) % N_FEATURES] += 1.0
    norm = np.sqrt((vec * vec).sum())
    return torch.from_numpy(vec / max(norm, 1e-6))


class TicketDataset(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, idx):
        text, label = self.rows[idx]
        return featurize(text), label


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)

    ds = TicketDataset(make_corpus(1500, seed=1))
    loader = DataLoader(ds, batch_size=64, shuffle=True, drop_last=True)
    model = nn.Sequential(nn.Linear(N_FEATURES, 96), nn.ReLU(), nn.Linear(96, 48), nn.ReLU(), nn.Linear(48, 4))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)

    step = 0
    while step < args.steps:
        for x, y in loader:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
            step += 1
            if step % 100 == 0 or step == args.steps:
                print(f"step {step} loss {loss.item():.6f}")
            if step >= args.steps:
                break


if __name__ == "__main__":
    main()
