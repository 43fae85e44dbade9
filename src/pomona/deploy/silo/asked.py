"""Which tasks a silo has taken on: it trains a round once and evaluates once a round, whatever a server asks.

A server that could ask again and again would learn of any model how it does on the silo's data. The same task again is
no new question: it gets the same answer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pomona.deploy.silo.memory import recall, remember
from pomona.deploy.wire import Task
from pomona.errors import ProtocolError


@dataclass(frozen=True)
class Asked:
    """The last task of each kind, in a file of a silo's state."""

    path: Path

    def require_new(self, task: Task) -> None:
        """Raise ProtocolError for a round that is behind, or for another task in one that was asked before."""
        number, question = self._last(task)
        if task.number < number or (task.number == number and task.question != question):
            said = "trained with" if task.trains else "evaluated"
            raise ProtocolError(
                f"round {task.number} is asked again with another task, after round {number} was {said} once; if the "
                "server went back on purpose, remove state/asked.json"
            )

    def note(self, task: Task) -> None:
        """Write down that a task is taken on, durably, before it is done."""
        remember(self.path, self._known(task) | {_kind(task): [task.number, task.question]})

    def _last(self, task: Task) -> tuple[int, str]:
        number, question = self._known(task).get(_kind(task), (0, ""))
        return int(number), str(question)

    def _known(self, task: Task) -> dict[str, Any]:
        """What was asked in the task's run."""
        known = recall(self.path) or {}
        return known if known.get("run") == task.run else {"run": task.run}


def _kind(task: Task) -> str:
    return "training" if task.trains else "evaluation"
