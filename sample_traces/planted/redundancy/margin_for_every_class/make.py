"""An angular margin is computed for every class, though only the right class of each face is given one."""

from __future__ import annotations

from pathlib import Path

import torch

from sample_traces import harness

WIDTH = {"weak": 384, "medium": 192, "strong": 32}
"""Of a face's vector."""
PEOPLE, BATCH, MARGIN, SCALE = 3000, 64, 0.5, 30.0


class Faces(torch.nn.Module):
    """Says who is seen, by the angle between a face's vector and that of each person."""

    def __init__(self, width: int, fixed: bool) -> None:
        super().__init__()
        self.fixed = fixed
        self.encoder = torch.nn.Sequential(
            torch.nn.Linear(512, 256), torch.nn.ReLU(inplace=True), torch.nn.Linear(256, width)
        )
        self.people = torch.nn.Parameter(torch.randn(PEOPLE, width))

    def further(self, cosines: torch.Tensor) -> torch.Tensor:
        """Cosines of angles that are wider by the margin."""
        return torch.cos(torch.acos(cosines.clamp(-0.999, 0.999)) + MARGIN)

    def forward(self, faces: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        vectors = torch.nn.functional.normalize(self.encoder(faces))
        cosines = torch.nn.functional.linear(vectors, torch.nn.functional.normalize(self.people))
        if self.fixed:
            right = labels[:, None]
            scores = cosines.scatter(1, right, self.further(cosines.gather(1, right)))
        else:
            right = torch.nn.functional.one_hot(labels, PEOPLE).bool()
            scores = torch.where(right, self.further(cosines), cosines)
        return torch.nn.functional.cross_entropy(SCALE * scores, labels)


def main() -> None:
    """Train."""
    run = harness.start()
    faces = torch.rand(1024, 512, device=run.device)
    labels = torch.randint(PEOPLE, (1024,), device=run.device)
    model = Faces(WIDTH[run.level], run.fixed).to(run.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)
    while True:
        for chosen in torch.randperm(1024).split(BATCH):
            optimizer.zero_grad()
            model(faces[chosen], labels[chosen]).backward()
            optimizer.step()
            if run.stepped():
                return


def verify(trace: Path) -> None:
    """Every step takes angles of all classes."""
    trace = trace.with_name("rank0.detail.json.gz")
    angles = [span for span in harness.spans(trace) if span["name"] == "aten::acos"]
    whole = [span for span in angles if span["args"].get("Input Dims", [[]])[0] == [BATCH, PEOPLE]]
    harness.expect(len(whole) >= len(harness.steps(trace)), "the angles of few classes are taken")


if __name__ == "__main__":
    main()
