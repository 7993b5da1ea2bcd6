"""SimCLR-style contrastive pre-training of a small encoder on noisy vectors."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def nt_xent(z1, z2, temperature=0.2):
    z = torch.cat([z1, z2])
    n = z1.shape[0]
    total = 0.0
    for i in range(2 * n):
        sim = F.cosine_similarity(z[i].unsqueeze(0), z) / temperature
        positive = sim[(i + n) % (2 * n)]
        others = torch.cat([sim[:i], sim[i + 1:]])
        total = total - positive + torch.logsumexp(others, dim=0)
    return total / (2 * n)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)

    data = torch.randn(40, 64)[torch.randint(0, 40, (8192,))] + 0.3 * torch.randn(8192, 64)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 32))
    opt = torch.optim.Adam(encoder.parameters(), lr=1e-3)

    for step in range(args.steps):
        x = data[torch.randint(0, len(data), (48,))]
        v1 = x + 0.2 * torch.randn_like(x)
        v2 = x * (torch.rand_like(x) > 0.2)
        loss = nt_xent(encoder(v1), encoder(v2))
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
