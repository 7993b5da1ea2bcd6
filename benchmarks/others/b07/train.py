"""GAN on synthetic signals: wide generator, small discriminator."""
import argparse

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


def real_batch(n, length):
    t = torch.linspace(0, 1, length)
    freq = 2 + 6 * torch.rand(n, 1)
    phase = 6.28 * torch.rand(n, 1)
    return torch.sin(6.28 * freq * t + phase)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)

    length, zdim, batch = 128, 32, 192
    gen = nn.Sequential(
        nn.Linear(zdim, 256), nn.LeakyReLU(0.2),
        nn.Linear(256, 384), nn.LeakyReLU(0.2),
        nn.Linear(384, 384), nn.LeakyReLU(0.2),
        nn.Linear(384, length), nn.Tanh())
    disc = nn.Sequential(
        nn.Linear(length, 128), nn.LeakyReLU(0.2),
        nn.Linear(128, 64), nn.LeakyReLU(0.2),
        nn.Linear(64, 1))
    opt_g = torch.optim.Adam(gen.parameters(), lr=1e-4, betas=(0.5, 0.999))
    opt_d = torch.optim.Adam(disc.parameters(), lr=1e-4, betas=(0.5, 0.999))
    ones, zeros = torch.ones(batch, 1), torch.zeros(batch, 1)

    for step in range(args.steps):
        real = real_batch(batch, length)
        fake = gen(torch.randn(batch, zdim))

        # discriminator
        d_loss = (F.binary_cross_entropy_with_logits(disc(real), ones)
                  + F.binary_cross_entropy_with_logits(disc(fake), zeros))
        opt_d.zero_grad()
        d_loss.backward(retain_graph=True)
        opt_d.step()

        # generator
        g_loss = F.binary_cross_entropy_with_logits(disc(fake), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()

        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} d_loss {d_loss.item():.6f} g_loss {g_loss.item():.6f}")


if __name__ == "__main__":
    main()
