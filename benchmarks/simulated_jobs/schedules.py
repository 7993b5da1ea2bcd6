"""In which order the ranks of a pipeline work that have several stages each, and what they hand on: 1F1B in rounds."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Action:
    """What a rank does next, as torch names it: 2F0, 1RECV_B3."""

    stage: int
    kind: str  # F, B, SEND_F, RECV_F, SEND_B or RECV_B.
    micro: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{self.micro}"


Order: TypeAlias = list[Action]


def interleaved(rank: int, ranks: int, each: int, micro: int) -> Order:
    """1F1B with stages rank, rank + ranks, ...: micro-batches in rounds of as many as ranks."""

    def forward(turn: int) -> Action:
        chunk, inside = divmod(turn % (ranks * each), ranks)
        return Action(chunk * ranks + rank, "F", turn // (ranks * each) * ranks + inside)

    def backward(turn: int) -> Action:
        chunk, inside = divmod(turn % (ranks * each), ranks)
        return Action((each - 1 - chunk) * ranks + rank, "B", turn // (ranks * each) * ranks + inside)

    turns = micro * each
    ahead = min((each - 1) * ranks + 2 * (ranks - 1 - rank), turns)
    found = [forward(turn) for turn in range(ahead)]
    for turn in range(turns):
        if turn + ahead < turns:
            found.append(forward(turn + ahead))
        found.append(backward(turn))
    return found


def with_transfers(orders: Sequence[Order], stages: int) -> list[Order]:
    """The same with what is sent and received, on both ranks of each pair in one order.

    A transfer is put right behind what makes it, on the rank that sends and on the one that receives.
    """
    found: list[Order] = [[] for _ in orders]
    done: set[Action] = set()
    left = [list(order) for order in orders]
    while any(left):
        before = len(done)
        for rank, some in enumerate(left):
            if some and _needed(some[0], stages) <= done:
                action = some.pop(0)
                done.add(action)
                found[rank].append(action)
                target = action.stage + (1 if action.kind == "F" else -1)
                if 0 <= target < stages and target % len(orders) != rank:
                    found[rank].append(Action(action.stage, f"SEND_{action.kind}", action.micro))
                    found[target % len(orders)].append(Action(target, f"RECV_{action.kind}", action.micro))
        if len(done) == before:
            raise ValueError("the stages wait for each other")
    return found


def _needed(action: Action, stages: int) -> set[Action]:
    if action.kind == "F":
        return {Action(action.stage - 1, "F", action.micro)} if action.stage else set()
    last = action.stage == stages - 1
    return {Action(action.stage, "F", action.micro) if last else Action(action.stage + 1, "B", action.micro)}
