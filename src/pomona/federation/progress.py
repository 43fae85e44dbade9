"""How far a run is, in one line, and the display of that line in a notebook."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

from pomona.config import Config
from pomona.federation.callbacks import NullCallback
from pomona.metrics.metric import ACCURACY
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow

BAR = 24  # maximum characters of the bar
WIDE = 100  # characters in a notebook
REDRAWN = 0.2  # seconds between two states in a notebook


@dataclass
class Standing:
    """Progress of a run, for one line.

    Attributes:
        method: its name.
        total: rounds.
        now: a clock in seconds.
        done: finished rounds; when resuming, the first one reported may be a late one.
        seen: the last value of the metric for each model; the headline model first.
    """

    method: str
    total: int
    headline: tuple[str, str]
    now: Callable[[], float] = monotonic
    done: int = 0
    seen: str = ""
    _began: float = field(init=False)
    _before: int | None = None

    def __post_init__(self) -> None:
        self._began = self.now()

    @classmethod
    def of(cls, config: Config, now: Callable[[], float] = monotonic) -> "Standing":
        """Create the progress of a run that has not begun."""
        return cls(config.method.name, config.rounds, config.method.method().card.headline, now)

    def begin(self) -> None:
        """Start the clock."""
        self._began = self.now()

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Record a finished round."""
        self._before = row.round - 1 if self._before is None else self._before
        self.done = row.round
        self.seen = (
            judged([e for e in evaluations if e.split == "test"], self.headline) or self.seen
        )

    def end(self, result: Result) -> None:
        """Finish the run with the evaluations of the models received after the last round."""
        last = {
            e.key: e for e in sorted(result.evaluations, key=lambda e: e.round) if e.split == "test"
        }
        self.seen = judged(list(last.values()), self.headline)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.now() - self._began

    @property
    def left(self) -> str:
        """Estimated remaining time at the rate since the start."""
        if self._before is None:
            return "-:--"
        return clock(self.elapsed / (self.done - self._before) * (self.total - self.done))


def judged(tests: Sequence[Evaluation], headline: tuple[str, str]) -> str:
    """Format the metric of each model, the headline one first, with the moment if a model has
    two.
    """
    texts: dict[str, list[str]] = {}
    for e in sorted(tests, key=lambda e: ((e.model, e.when) != headline, e.model != headline[0])):
        texts.setdefault(e.model, []).append(f"{e.when} {e.judged.text(e.mean)}")
    each = [
        f"{model} {', '.join(t) if len(t) > 1 else t[0].partition(' ')[2]}"
        for model, t in texts.items()
    ]
    title = f"{tests[0].judged.title}: " if tests and tests[0].judged != ACCURACY else ""
    return title + "  ".join(each)


def clock(seconds: float) -> str:
    """Format a time as "1:05" or "2:01:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def line(standing: Standing, width: int) -> str:
    """Format the line for a terminal's width: rounds, times and headline model always, the rest as
    it fits.
    """
    s = standing
    bare = f"{s.done}/{s.total} {clock(s.elapsed)} left {s.left}  {s.seen}".rstrip()
    named = f"{s.method} {bare}"
    room = min(BAR, width - len(named) - 2)
    if room >= BAR // 2:
        full = room * s.done // s.total
        return f"{s.method} {'━' * full}{'─' * (room - full)} {bare}"
    fits = named if len(named) <= width else bare
    return fits if len(fits) <= width else fits[: width - 1] + "…"


class InNotebook(NullCallback):
    """The line in one output of a notebook's cell; ``display``: as of IPython."""

    def __init__(self, standing: Standing, display: Callable[..., Any]) -> None:
        self._standing, self._drawn, self._said = standing, -REDRAWN, list[str]()
        self._output = display({"text/plain": ""}, raw=True, display_id=True)

    def begin(self) -> None:
        """Show the line."""
        self._standing.begin()
        self._draw()

    def round(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Advance by a round."""
        self._standing.round(row, evaluations)
        if self._standing.elapsed - self._drawn >= REDRAWN:
            self._draw()

    def end(self, result: Result) -> None:
        """Show the final values."""
        self._standing.end(result)
        self._draw()

    def note(self, text: str) -> None:
        """Keep a line above."""
        self._said.append(f"note: {text}")

    def _draw(self) -> None:
        self._drawn = self._standing.elapsed
        text = "\n".join([*self._said, line(self._standing, WIDE)])
        self._output.update({"text/plain": text}, raw=True)


def in_notebook(config: Config) -> InNotebook | None:
    """Return the display of a run in a notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    return InNotebook(Standing.of(config), ipython.display.display)
