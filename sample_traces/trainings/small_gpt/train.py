"""Train a small GPT on generated tokens.

    python train.py
    python train.py --flash --amp --fused --log-every 50 --compile

Slow on purpose, and the flag that fixes it:
    attention is written out: matmul, mask, softmax, matmul     --flash
    every step waits for loss.item()                            --log-every 50
    everything is in fp32                                       --amp
    the optimizer launches several kernels per step             --fused
    small ops between the matmuls run one by one     --compile

`--tf32` runs matmuls of fp32 on Tensor Cores, and `--fp8` linear layers in 8 bits.
"""

# ruff: noqa: D101, D102, D103, N806, N812
import argparse
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def product8(a, b, dtype=E4M3):
    """a @ b in 8 bits, each scaled by its largest number."""
    a_scale, b_scale = (
        t.abs().max().float().clamp(min=1e-12) / torch.finfo(kind).max for t, kind in [(a, dtype), (b, E4M3)]
    )
    low = (a / a_scale).to(dtype), (b / b_scale).to(E4M3).t().contiguous().t()
    return torch._scaled_mm(*low, scale_a=a_scale, scale_b=b_scale, out_dtype=torch.bfloat16)


class Product8(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return product8(x, w.t())

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        return product8(grad.contiguous(), w, E5M2), product8(grad.t().contiguous(), x, E5M2)


class Linear8(nn.Linear):
    def forward(self, x):
        y = Product8.apply(x.reshape(-1, x.size(-1)).bfloat16(), self.weight.bfloat16())
        return (y + self.bias.bfloat16()).view(*x.shape[:-1], -1)


class Attention(nn.Module):
    def __init__(self, dim, heads, context, dropout, flash):
        super().__init__()
        self.heads = heads
        self.flash = flash
        self.dropout = dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.register_buffer("mask", torch.tril(torch.ones(context, context)).view(1, 1, context, context))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (t.view(B, T, self.heads, C // self.heads).transpose(1, 2) for t in self.qkv(x).split(C, dim=2))
        if self.flash:
            p = self.dropout if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        else:
            att = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
            att = att.masked_fill(self.mask[:, :, :T, :T] == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
            att = F.dropout(att, self.dropout, self.training)
            y = att @ v
        return self.proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Layer(nn.Module):
    def __init__(self, dim, heads, context, dropout, flash):
        super().__init__()
        self.ln1 = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads, context, dropout, flash)
        self.ln2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim), nn.Dropout(dropout))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, vocab, context, layers, heads, dim, dropout, flash):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim)
        self.positions = nn.Embedding(context, dim)
        self.layers = nn.ModuleList([Layer(dim, heads, context, dropout, flash) for _ in range(layers)])
        self.ln = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self.init)

    @staticmethod
    def init(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, idx, targets):
        pos = torch.arange(idx.size(1), device=idx.device)
        x = self.tokens(idx) + self.positions(pos)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.ln(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def get_batch(data, batch_size, context, device):
    ix = torch.randint(len(data) - context, (batch_size,))
    x = torch.stack([data[i : i + context] for i in ix])
    y = torch.stack([data[i + 1 : i + 1 + context] for i in ix])
    return x.to(device), y.to(device)


def get_lr(step, args):
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


@torch.no_grad()
def evaluate(model, data, args, device):
    model.eval()
    losses = [model(*get_batch(data, args.batch_size, args.context, device)).item() for _ in range(10)]
    model.train()
    return sum(losses) / len(losses)


def parse_args():
    cuda = torch.cuda.is_available()
    p = argparse.ArgumentParser()
    p.add_argument("--steps", type=int, default=200)
    p.add_argument("--batch-size", type=int, default=8 if cuda else 4)
    p.add_argument("--accumulate", type=int, default=2)
    p.add_argument("--context", type=int, default=1024 if cuda else 128)
    p.add_argument("--layers", type=int, default=12 if cuda else 4)
    p.add_argument("--heads", type=int, default=12 if cuda else 4)
    p.add_argument("--dim", type=int, default=768 if cuda else 128)
    p.add_argument("--vocab", type=int, default=50304 if cuda else 256)
    p.add_argument("--dropout", type=float, default=0.0)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--warmup", type=int, default=20)
    p.add_argument("--grad-clip", type=float, default=1.0)
    p.add_argument("--flash", action="store_true")
    p.add_argument("--amp", action="store_true")
    p.add_argument("--fused", action="store_true")
    p.add_argument("--compile", action="store_true")
    p.add_argument("--tf32", action="store_true")
    p.add_argument("--fp8", action="store_true")
    p.add_argument("--log-every", type=int, default=1)
    p.add_argument("--eval-every", type=int, default=100, help="steps between evaluations (0: none)")
    p.add_argument("--seed", type=int, default=0)
    return p.parse_args()


def main():
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    device = "cuda" if torch.cuda.is_available() else "cpu"

    # a random walk over the vocabulary: the next token is one of a few
    data = torch.randint(1, 8, (1_000_000,)).cumsum(0) % args.vocab
    train_data, val_data = data[:900_000], data[900_000:]

    model = GPT(args.vocab, args.context, args.layers, args.heads, args.dim, args.dropout, args.flash).to(device)
    for linear in [m for m in model.layers.modules() if args.fp8 and isinstance(m, nn.Linear)]:
        linear.__class__ = Linear8
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.2f}M parameters")
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}],
        lr=args.lr,
        betas=(0.9, 0.95),
        fused=True if args.fused else None,
    )
    if args.compile:
        model = torch.compile(model)

    model.train()
    t0 = time.time()
    for step in range(args.steps):
        lr = get_lr(step, args)
        for group in optimizer.param_groups:
            group["lr"] = lr

        if args.eval_every and step > 0 and step % args.eval_every == 0:
            print(f"step {step} validation {evaluate(model, val_data, args, device):.4f}")

        for _ in range(args.accumulate):
            x, y = get_batch(train_data, args.batch_size, args.context, device)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=args.amp):
                loss = model(x, y) / args.accumulate
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

        if step % args.log_every == 0:
            lossf = loss.item() * args.accumulate
            t1 = time.time()
            print(f"step {step} loss {lossf:.6f} time {(t1 - t0) * 1000 / args.log_every:.1f} ms")
            t0 = t1


if __name__ == "__main__":
    main()
