"""Which tasks a silo has taken on: it trains a round once and evaluates once a round, whatever a server asks.

A server that could ask again and again would learn of any model how it does on the silo's data. The same task again is
no new question: it gets the same answer.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pomona.core.bounds import Number, Sha256
from pomona.core.errors import ProtocolError
from pomona.core.settings import Settings
from pomona.deploy.json_store import recall, remember
from pomona.deploy.messages import Task, Token


class LastTasks(Settings):
    """The last task of each kind in a run: its round, and its question."""

    run: Token
    training: tuple[Number, Sha256 | Literal[""]] = (0, "")
    evaluation: tuple[Number, Sha256 | Literal[""]] = (0, "")


@dataclass(frozen=True)
class TaskLog:
    """The last task of each kind, in a file of a silo's state."""

    path: Path

    def require_new(self, task: Task) -> None:
        """Raise ProtocolError for a round that is behind, or for another task in one that was asked before."""
        known = self._known(task)
        number, question = known.training if task.trains else known.evaluation
        if task.number < number or (task.number == number and task.question != question):
            said = "trained with" if task.trains else "evaluated"
            raise ProtocolError(
                f"round {task.number} is asked again with another task, after round {number} was {said} once; if the "
                "server went back on purpose, remove state/asked.json"
            )

    def note(self, task: Task) -> None:
        """Write down that a task is taken on, durably, before it is done."""
        kind = "training" if task.trains else "evaluation"
        remember(self.path, self._known(task).model_copy(update={kind: (task.number, task.question)}))

    def _known(self, task: Task) -> LastTasks:
        """What was asked in the task's run."""
        known = recall(LastTasks, self.path)
        return known if known and known.run == task.run else LastTasks(run=task.run)
