"""Variable-length sequence classification with a GRU; reads the state at the last valid position."""
import argparse

import torch
import torch.nn as nn

torch.set_num_threads(1)

VOCAB, CLASSES, MAXLEN = 200, 5, 56


class SeqClassifier(nn.Module):
    def __init__(self, emb=24, hidden=40):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, emb)
        self.gru = nn.GRU(emb, hidden, batch_first=True)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, tokens, lengths):
        states, _ = self.gru(self.emb(tokens))
        last = []
        for i, n in enumerate(lengths.tolist()):
            last.append(states[i, n - 1])
        return self.head(torch.stack(last))


def make_data(n):
    tokens = torch.randint(0, VOCAB, (n, MAXLEN))
    lengths = torch.randint(10, MAXLEN + 1, (n,))
    labels = torch.stack([tokens[i, l - 4:l].sum() % CLASSES for i, l in enumerate(lengths.tolist())])
    return tokens, lengths, labels


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, default=400)
    ap.add_argument("--batch-size", type=int, default=80)
    args = ap.parse_args()

    torch.manual_seed(3)
    tokens, lengths, labels = make_data(2000)
    model = SeqClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    loss_fn = nn.CrossEntropyLoss()

    for step in range(args.steps):
        idx = torch.randint(0, len(tokens), (args.batch_size,))
        logits = model(tokens[idx], lengths[idx])
        loss = loss_fn(logits, labels[idx])
        opt.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        opt.step()
        if (step + 1) % 100 == 0 or step + 1 == args.steps:
            print(f"[{step + 1}/{args.steps}] loss={loss.item():.6f}")
