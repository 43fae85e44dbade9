"""What a silo keeps of its rounds: a file each, published as a whole.

It holds the state after the round's training, what that went on from, and the answer that was given. An evaluation
changes no state: of the last one, the only one that may be asked again, ``evaluation.json`` holds the answer.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pomona.core.bounds import Sha256
from pomona.core.errors import CheckpointError
from pomona.core.round import Roster
from pomona.core.settings import Settings
from pomona.deploy.json_store import recall, remember
from pomona.deploy.messages import Answer, Task
from pomona.federation.client_runtime import ClientRuntime
from pomona.storage import checkpoint
from pomona.storage.committed_rounds import committed

KEPT = 3  # rounds: the one in flight, the one it went on from, and one more in case a disk fails
ANSWER = "answer"  # the uplink's bytes beside the state
EVALUATION = "evaluation.json"


class KeptEvaluation(Settings):
    """The last evaluation: its task's question, and what was answered."""

    question: Sha256
    answer: Answer


@dataclass(frozen=True)
class RoundStore:
    """The folder of a silo's rounds."""

    folder: Path

    def answered(self, task: Task) -> tuple[Answer, bytes] | None:
        """The answer and the uplink's bytes, if this very question was answered before."""
        given = self._trained(task) if task.trains else self._evaluated(task)
        return (given[0].model_copy(update={"task": task.digest}), given[1]) if given else None

    def _trained(self, task: Task) -> tuple[Answer, bytes] | None:
        for number, path in committed(self.folder):
            if number == task.number:
                found = checkpoint.read(path)
                if found.meta["task"] != task.question:
                    return None
                return Answer.model_validate_json(found.meta["answer"]), bytes(found.tensors[ANSWER].numpy())
        return None

    def _evaluated(self, task: Task) -> tuple[Answer, bytes] | None:
        known = recall(KeptEvaluation, self.folder / EVALUATION)
        return (known.answer, b"") if known and known.question == task.question else None

    def restore(self, number: int, clients: ClientRuntime, place: int, roster: Roster) -> None:
        """Put clients where the silo's round ``number`` left them. Raises CheckpointError if that is not here."""
        for found, path in committed(self.folder):
            if found == number:
                kept = checkpoint.read(path)
                state: dict[str, Tensor] = {k: t for k, t in kept.tensors.items() if k != ANSWER}
                clients.restore((place,), state, roster)
                return
        raise CheckpointError(
            f"the federation goes on from this silo's round {number}, which is not in state/checkpoints; restore the "
            "folder from a backup, or have the silo revoked and added anew"
        )

    def agree(self, clients: ClientRuntime, place: int) -> None:
        """Raise PrivacyError unless the client's ledger goes on from the last round here, whichever one is settled."""
        found, _ = checkpoint.newest(self.folder)
        if found:
            clients.agree(place, {place: found.meta["position"]})

    def keep(self, task: Task, clients: ClientRuntime, answer: Answer, uplink: bytes) -> None:
        """Publish a round that was trained, with its answer.

        What the server calls settled stays, however many rounds have come to nothing since; and so does what that one
        went on from, for a server that loses its newest checkpoint goes back to it.
        """
        stored = clients.stored(task.place)
        stored[ANSWER] = torch.from_numpy(np.frombuffer(uplink, dtype=np.uint8).copy())
        meta = {
            "task": task.question,
            "answer": answer.model_dump_json(),
            "position": clients.position(task.place),
            "settled": task.settled,
        }
        spare = {task.settled, self._before(task.settled)}
        checkpoint.save(self.folder, task.number, stored, meta, keep=KEPT, spare=spare)

    def keep_evaluation(self, task: Task, answer: Answer) -> None:
        """Keep the answer to an evaluation, in place of the one before. Raises OSError."""
        remember(self.folder / EVALUATION, KeptEvaluation(question=task.question, answer=answer))

    def _before(self, number: int) -> int:
        """The round that round ``number`` went on from; 0 for none, or where that is not known."""
        path = dict(committed(self.folder)).get(number)
        return int(checkpoint.read(path).meta.get("settled", 0)) if path else 0
