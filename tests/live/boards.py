"""Scalars for TensorBoard, read back by its own reader."""

from pathlib import Path
from typing import TypeAlias

Point: TypeAlias = tuple[float, int, dict[str, float]]


def points(folder: Path) -> list[Point]:
    """Time, step and scalars of each window."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    found: dict[int, Point] = {}
    for tag in read.Tags()["scalars"]:
        for one in read.Scalars(tag):
            found.setdefault(one.step, (one.wall_time, one.step, {}))[2][tag] = one.value
    return [found[step] for step in sorted(found)]
