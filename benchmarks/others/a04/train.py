"""Tiny causal transformer on a synthetic copy-with-offset language."""
import argparse
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)
torch.manual_seed(42)


def sinusoid_table(length, dim):
    table = []
    for pos in range(length):
        row = []
        for i in range(dim):
            angle = pos / math.pow(10000.0, 2 * (i // 2) / dim)
            row.append(math.sin(angle) if i % 2 == 0 else math.cos(angle))
        table.append(row)
    return torch.tensor(table, dtype=torch.float32)


class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.ln1 = nn.LayerNorm(dim)
        self.ln2 = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.ln1(x)).chunk(3, dim=-1)
        q, k, v = (z.view(b, t, self.heads, d // self.heads).transpose(1, 2) for z in (q, k, v))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(a.transpose(1, 2).reshape(b, t, d))
        return x + self.mlp(self.ln2(x))


class TinyLM(nn.Module):
    def __init__(self, vocab=64, dim=64, heads=4, depth=1, max_len=96):
        super().__init__()
        self.dim = dim
        self.tok = nn.Embedding(vocab, dim)
        self.blocks = nn.ModuleList([Block(dim, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        x = self.tok(ids) + sinusoid_table(ids.size(1), self.dim)
        for blk in self.blocks:
            x = blk(x)
        return self.out(self.norm(x))


def get_batch(batch, length, gen):
    base = torch.randint(0, 64, (batch, 9), generator=gen)
    seq = base.repeat(1, length // 9 + 2)[:, :length + 1]
    return seq[:, :-1], seq[:, 1:]


def train(steps):
    gen = torch.Generator().manual_seed(5)
    model = TinyLM()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        x, y = get_batch(3, 96, gen)
        logits = model(x)
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if (step + 1) % 100 == 0 or step + 1 == steps:
            print(f"{step + 1}: {loss.item():.6f}")


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=400)
    train(p.parse_args().steps)
