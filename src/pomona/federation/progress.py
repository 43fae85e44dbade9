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
class RunProgress:
    """Progress of a run, for one line.

    Attributes:
        method: its name.
        total: rounds.
        timer: a clock in seconds.
        round: the last finished one; when resuming, the first one reported may be a late one.
        metrics: the last value of the metric for each model; the headline model first.
    """

    method: str
    total: int
    headline: tuple[str, str]
    timer: Callable[[], float] = monotonic
    round: int = 0
    metrics: str = ""
    _start: float = field(init=False)
    _start_round: int | None = None

    def __post_init__(self) -> None:
        self._start = self.timer()

    @classmethod
    def of_run(cls, config: Config, timer: Callable[[], float] = monotonic) -> "RunProgress":
        """Create the progress of a run that has not begun."""
        return cls(config.method.name, config.rounds, config.method.method().card.headline, timer)

    def start_clock(self) -> None:
        """Start the clock."""
        self._start = self.timer()

    def update(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Record a finished round."""
        self._start_round = row.round - 1 if self._start_round is None else self._start_round
        self.round = row.round
        self.metrics = (
            metric_text([e for e in evaluations if e.split == "test"], self.headline)
            or self.metrics
        )

    def finish(self, result: Result) -> None:
        """Finish the run with the evaluations of the models received after the last round."""
        last = {
            e.key: e for e in sorted(result.evaluations, key=lambda e: e.round) if e.split == "test"
        }
        self.metrics = metric_text(list(last.values()), self.headline)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self.timer() - self._start

    @property
    def remaining(self) -> str:
        """Estimated remaining time at the rate since the start."""
        if self._start_round is None:
            return "-:--"
        return clock(self.elapsed / (self.round - self._start_round) * (self.total - self.round))


def metric_text(tests: Sequence[Evaluation], headline: tuple[str, str]) -> str:
    """Format the metric of each model, the headline one first, with the stage if a model has
    two.
    """
    texts: dict[str, list[str]] = {}
    for e in sorted(tests, key=lambda e: ((e.model, e.when) != headline, e.model != headline[0])):
        texts.setdefault(e.model, []).append(f"{e.when} {e.value_metric.text(e.mean)}")
    entries = [
        f"{model} {', '.join(t) if len(t) > 1 else t[0].partition(' ')[2]}"
        for model, t in texts.items()
    ]
    title = (
        f"{tests[0].value_metric.title}: " if tests and tests[0].value_metric != ACCURACY else ""
    )
    return title + "  ".join(entries)


def clock(seconds: float) -> str:
    """Format a time as "1:05" or "2:01:05"."""
    minutes, secs = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def line(progress: RunProgress, width: int) -> str:
    """Format the line for a terminal's width: rounds, times and headline model always, the rest as
    it fits.
    """
    s = progress
    figures = f"{s.round}/{s.total} {clock(s.elapsed)} left {s.remaining}  {s.metrics}".rstrip()
    with_method = f"{s.method} {figures}"
    room = min(BAR, width - len(with_method) - 2)
    if room >= BAR // 2:
        filled = room * s.round // s.total
        return f"{s.method} {'━' * filled}{'─' * (room - filled)} {figures}"
    text = with_method if len(with_method) <= width else figures
    return text if len(text) <= width else text[: width - 1] + "…"


class InNotebook(NullCallback):
    """The line in one output of a notebook's cell; ``display``: as of IPython."""

    def __init__(self, progress: RunProgress, display: Callable[..., Any]) -> None:
        self._progress, self._drawn_at, self._notes = progress, -REDRAWN, list[str]()
        self._output = display({"text/plain": ""}, raw=True, display_id=True)

    def on_run_begin(self) -> None:
        """Show the line."""
        self._progress.start_clock()
        self._draw()

    def on_round_end(self, row: RoundRow, evaluations: Sequence[Evaluation]) -> None:
        """Advance by a round."""
        self._progress.update(row, evaluations)
        if self._progress.elapsed - self._drawn_at >= REDRAWN:
            self._draw()

    def on_run_end(self, result: Result) -> None:
        """Show the final values."""
        self._progress.finish(result)
        self._draw()

    def on_note(self, text: str) -> None:
        """Keep a line above."""
        self._notes.append(f"note: {text}")

    def _draw(self) -> None:
        self._drawn_at = self._progress.elapsed
        text = "\n".join([*self._notes, line(self._progress, WIDE)])
        self._output.update({"text/plain": text}, raw=True)


def in_notebook(config: Config) -> InNotebook | None:
    """Return the display of a run in a notebook; None elsewhere."""
    ipython = sys.modules.get("IPython")
    if ipython is None or not hasattr(ipython.get_ipython(), "kernel"):
        return None
    return InNotebook(RunProgress.of_run(config), ipython.display.display)
