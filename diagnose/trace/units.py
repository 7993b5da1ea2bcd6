"""Numbers for people: times, shares, sizes. One way to write each."""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby

_TIMES = ((1e9, "s"), (1e6, "ms"), (1e3, "us"))
_SIZES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def _scaled(
    value: float, scales: Sequence[tuple[float, str]], least: str, digits: Callable[[float], str], one: float = 0.9995
) -> str:
    """The value in the largest unit of which it is about one (`one`) or more, else whole in the unit `least`."""
    texts = (f"{digits(value / factor)} {unit}" for factor, unit in scales if abs(value) >= one * factor)
    return next(texts, f"{value:.0f} {least}")


def duration(ns: int | float) -> str:
    """Three significant digits and a unit: 222 ms, 14.7 ms, 850 us, 1.24 s. Below 1 us in ns; nothing is 0."""
    return _scaled(ns, _TIMES, "ns", three_digits) if ns else "0"


def durations_ns(text: str) -> list[float]:
    """The times of a text, written as `duration` does: "1.24 s, then 850 us" is [1.24e9, 8.5e5]."""
    units = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}
    return [float(much.replace(",", "")) * units[of] for much, of in re.findall(r"([\d,]*\.?\d+) ([mun]?s)\b", text)]


def three_digits(value: float) -> str:
    """A number with three significant digits, and all digits before the point."""
    size = abs(value)
    decimals = 0 if size >= 99.95 else 1 if size >= 9.995 else 2
    return f"{value:,.{decimals}f}"


def two_digits(value: float) -> str:
    """An estimate with two significant digits, and all digits before the point."""
    size = abs(value)
    return f"{value:,.{0 if size >= 9.95 else 1 if size >= 0.995 else 2}f}"


def about(ns: float) -> str:
    """An estimated duration, with two significant digits: 8.6 s, 48 ms."""
    return _scaled(ns, _TIMES, "ns", two_digits, 0.995) if ns else "0"


def share(part: float, whole: float) -> str:
    """A share as percent with one decimal; "-" of nothing. What is there but would round to 0.0 is "<0.1 %"."""
    if not whole:
        return "-"
    return "<0.1 %" if 0 < part / whole < 0.0005 else f"{100 * part / whole:.1f} %"


def rounded_share(part: float) -> str:
    """A share with two significant digits: 92 %, 7.9 %, 0.4 %; <0.1 % of what is less."""
    if 0 < part < 0.0005:
        return "<0.1 %"
    return f"{100 * part:.0f} %" if abs(part) >= 0.0995 or not part else f"{100 * part:.1f} %"


def percent(part: float) -> str:
    """A share as percent, as `share` writes it: 12.5 %."""
    return share(part, 1.0) if part else "0 %"


def share_of(text: str | float) -> float:
    """What `0.05` or `5%` stands for. Raises ValueError, with a sentence, if it is no share from 0 to 1."""
    given = str(text).strip()
    try:
        found = float(given.removesuffix("%")) / (100 if given.endswith("%") else 1)
    except ValueError:
        found = -1.0
    if not 0 <= found <= 1:
        raise ValueError(f"{text!r} is not a share such as 0.05 or 5%.")
    return found


def number(count: float) -> str:
    """A count, with one decimal where it is no whole number: 1,325, 1.6, <0.1."""
    if count == int(count):
        return f"{int(count):,}"
    return f"{count:,.1f}" if count >= 0.05 else "<0.1"


def size(count: float) -> str:
    """Bytes in decimal units, as bandwidths are given in: 19.3 MB."""
    return _scaled(count, _SIZES, "B", three_digits)


def bar(part: float, whole: float, width: int) -> str:
    """A bar of eighth blocks, `width` characters for the whole."""
    eighths = round(8 * width * part / whole) if whole else 0
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def clipped(text: str, width: int) -> str:
    """The text in at most `width` characters, its end replaced by an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "…"


def clipped_left(text: str, width: int) -> str:
    """The text in at most `width` characters, its beginning replaced by an ellipsis: for paths."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def ranks(numbers: Iterable[int]) -> str:
    """Ranks in order, those that follow each other as one: rank 3; ranks 0-3, 8."""
    ordered = sorted(numbers)
    runs = [[one for _, one in run] for _, run in groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])]
    listed = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ordered) > 1 else ''} {listed}"


def long_duration(ns: float) -> str:
    """As people say it: 3 h 12 min, 12 min 3 s; below a minute as `duration`."""
    if ns < 60e9:
        return duration(ns)
    seconds = round(ns / 1e9)
    hours, minutes = divmod(seconds // 60, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {seconds % 60} s"
