"""Times of a job, each the latest of some others and a while after it; all are known once the last rank has run."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """A while after a node."""

    node: int
    after_ns: int

    def later(self, by_ns: int) -> Moment:
        """So much later."""
        return Moment(self.node, self.after_ns + by_ns)


BEGIN = Moment(0, 0)


class Moments:
    """Nodes: each is as late as the latest of the moments that it waits for."""

    def __init__(self) -> None:
        self._waits_for: list[list[Moment]] = [[]]

    def open(self) -> int:
        """A node that waits for nothing yet."""
        self._waits_for.append([])
        return len(self._waits_for) - 1

    def wait_for(self, node: int, moment: Moment) -> None:
        """It is not before that moment."""
        self._waits_for[node].append(moment)

    def latest(self, *some: Moment) -> Moment:
        """The latest of some."""
        if len({one.node for one in some}) == 1:
            return max(some)
        node = self.open()
        self._waits_for[node] += some
        return Moment(node, 0)

    def times(self) -> list[int]:
        """When each node is, ns. Raises ValueError if some wait for each other."""
        missing = [len(some) for some in self._waits_for]
        behind: list[list[int]] = [[] for _ in missing]
        for node, some in enumerate(self._waits_for):
            for one in some:
                behind[one.node].append(node)
        found = [0] * len(missing)
        ready = [node for node, count in enumerate(missing) if not count]
        done = 0
        while ready:
            node = ready.pop()
            done += 1
            found[node] = max((found[one.node] + one.after_ns for one in self._waits_for[node]), default=0)
            for one_behind in behind[node]:
                missing[one_behind] -= 1
                if not missing[one_behind]:
                    ready.append(one_behind)
        if done < len(missing):
            raise ValueError("ranks wait for each other")
        return found
