"""Double-DQN on a prioritised replay buffer filled with synthetic transitions."""
import argparse

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(1)


class Replay:
    def __init__(self, n, obs_dim, n_act, rng):
        self.obs = torch.from_numpy(rng.standard_normal((n, obs_dim)).astype(np.float32))
        self.act = torch.from_numpy(rng.integers(0, n_act, n))
        self.rew = torch.tanh(self.obs[:, :3].sum(1) * (self.act % 3 - 1))
        self.next_obs = 0.9 * self.obs + 0.1 * torch.from_numpy(
            rng.standard_normal((n, obs_dim)).astype(np.float32))
        self.done = torch.from_numpy((rng.random(n) < 0.02).astype(np.float32))
        self.prio = torch.ones(n)
        self.alpha = 0.6

    def sample(self, batch, gen):
        p = self.prio ** self.alpha
        idx = torch.multinomial(p, batch, replacement=False, generator=gen)
        w = (len(p) * p[idx] / p.sum()) ** -0.4
        return idx, w / w.max()

    def update_priorities(self, idx, td):
        for i, d in zip(idx, td):
            self.prio[i.item()] = abs(d.item()) + 1e-3


def mlp(i, o):
    return nn.Sequential(nn.Linear(i, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, o))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    args = ap.parse_args()
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    gen = torch.Generator().manual_seed(1)

    obs_dim, n_act = 16, 6
    buf = Replay(5_000, obs_dim, n_act, rng)
    q, target = mlp(obs_dim, n_act), mlp(obs_dim, n_act)
    target.load_state_dict(q.state_dict())
    opt = torch.optim.Adam(q.parameters(), lr=1e-3)

    for step in range(args.steps):
        idx, w = buf.sample(512, gen)
        o, a, r, o2, d = buf.obs[idx], buf.act[idx], buf.rew[idx], buf.next_obs[idx], buf.done[idx]
        with torch.no_grad():
            best = q(o2).argmax(1, keepdim=True)
            y = r + 0.97 * (1 - d) * target(o2).gather(1, best).squeeze(1)
        qa = q(o).gather(1, a.unsqueeze(1)).squeeze(1)
        loss = (w * F.smooth_l1_loss(qa, y, reduction="none")).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()

        buf.update_priorities(idx, (qa - y).detach())
        if step % 100 == 99:
            target.load_state_dict(q.state_dict())
        if step % 50 == 0 or step == args.steps - 1:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
