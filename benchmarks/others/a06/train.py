"""VAE on synthetic stroke images, with protection against non-finite losses."""
import argparse
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class VAE(nn.Module):
    def __init__(self, d_in=400, hidden=256, latent=12):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(d_in, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())
        self.mu = nn.Linear(hidden, latent)
        self.logvar = nn.Linear(hidden, latent)
        self.dec = nn.Sequential(
            nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, d_in)
        )

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * torch.exp(0.5 * logvar)
        return self.dec(z), mu, logvar


def elbo(recon, x, mu, logvar):
    rec = F.binary_cross_entropy_with_logits(recon, x, reduction="sum")
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (rec + kl) / x.size(0)


def strokes(n):
    g = torch.linspace(-1, 1, 20)
    yy, xx = torch.meshgrid(g, g, indexing="ij")
    ang = torch.rand(n, 1, 1) * 3.14159
    off = torch.rand(n, 1, 1) - 0.5
    dist = (xx * torch.cos(ang) + yy * torch.sin(ang) - off).abs()
    return (dist < 0.15).float().view(n, -1)


class Trainer:
    def __init__(self, batch_size=96):
        self.data = strokes(3000)
        self.batch_size = batch_size
        self.model = VAE()
        self.opt = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.skipped = 0

    def step(self):
        idx = torch.randint(0, len(self.data), (self.batch_size,))
        x = self.data[idx]
        backup = (copy.deepcopy(self.model.state_dict()), copy.deepcopy(self.opt.state_dict()))
        loss = elbo(*self._forward(x))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        if not torch.isfinite(loss):
            self.model.load_state_dict(backup[0])
            self.opt.load_state_dict(backup[1])
            self.skipped += 1
        return loss

    def _forward(self, x):
        recon, mu, logvar = self.model(x)
        return recon, x, mu, logvar


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    opts = parser.parse_args()
    torch.manual_seed(21)
    trainer = Trainer()
    for it in range(opts.steps):
        loss = trainer.step()
        if (it + 1) % 100 == 0 or it + 1 == opts.steps:
            print(f"iter {it + 1} elbo {loss.item():.5f} skipped {trainer.skipped}")
