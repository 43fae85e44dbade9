"""A silo's storage between messages: its rounds (``state/checkpoints``) and the model rows it holds
(``state/cache``).

A round's file holds the state after its training, the round that it continued from, and the answer.
An evaluation changes no state: ``evaluation.json`` holds the answer of the last one, the only one
that may be asked again. With ``keep = own_best`` it may find the best model so far, which is kept
in ``state/checkpoints/evaluated``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pomona.core.bounds import DIGEST, Sha256
from pomona.core.errors import CheckpointError, ProtocolError
from pomona.core.files import WEIGHTS, content, publish_by_hash
from pomona.core.round import Roster
from pomona.core.settings import Settings
from pomona.federation import client_queries
from pomona.federation.client import ClientRuntime
from pomona.storage import checkpoint
from pomona.storage.run_status import committed
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Answer, Task
from pomona_federation.messages.tensor_bytes import sha256

# rounds kept: the one in flight, its predecessor, and one more in case a disk fails
ROUNDS_KEPT = 3
ANSWER = "answer"  # the uplink's bytes, stored with the state
EVALUATION = "evaluation.json"
EVALUATED = "evaluated"


def _unfit(numbers: Sequence[int], origin: str, settled: int) -> str:
    """Why a study does not continue from the rounds here, and what to do."""
    remedy = (
        "it is left out of the study until the lead readmits it (pomona server readmit); if "
        "another copy of it runs, stop this one"
    )
    if numbers and min(numbers) > settled:
        remedy = "the server's backup is older than all rounds kept here: submit the study again"
    newest = max(numbers, default=0)
    state = f"its state is of round {newest}" if newest else "it has no state of the study"
    return f"{state}{origin} and the study continues from this silo's round {settled}: {remedy}"


class LastEvaluation(Settings):
    """The last evaluation: its task's question, and the answer."""

    question: Sha256
    answer: Answer


@dataclass(frozen=True)
class RoundStore:
    """The folder of a silo's rounds."""

    folder: Path

    def answered(self, task: Task) -> tuple[Answer, bytes] | None:
        """The answer and the uplink's bytes, if this exact question was answered before."""
        stored = self._trained(task) if task.trains else self._evaluated(task)
        return (stored[0].model_copy(update={"task": task.digest}), stored[1]) if stored else None

    def _trained(self, task: Task) -> tuple[Answer, bytes] | None:
        for number, path in committed(self.folder):
            if number == task.number:
                stored = checkpoint.read(path)
                if stored.meta["task"] != task.question:
                    return None
                return Answer.model_validate_json(stored.meta["answer"]), bytes(
                    stored.tensors[ANSWER].numpy()
                )
        return None

    def _evaluated(self, task: Task) -> tuple[Answer, bytes] | None:
        stored = read_json(LastEvaluation, self.folder / EVALUATION)
        return (stored.answer, b"") if stored and stored.question == task.question else None

    def base(self, task: Task, backup: Callable[[], str] = str) -> int:
        """The round of this silo whose state a task continues from; 0 for a new one.

        It is the settled round or, if that is not here and the lead has taken the silo again, the
        newest before it: its own state, only older.

        Args:
            task: of this silo.
            backup: when the backup was made from which the kit was last restored; "" for none.

        Raises:
            CheckpointError: the settled round is not here, and the silo was not taken again.
        """
        numbers = [number for number, _ in committed(self.folder)]
        if not task.settled or task.settled in numbers:
            return task.settled
        earlier = [number for number in numbers if number < task.settled]
        if task.readmitted and (earlier or not numbers):
            return max(earlier, default=0)
        origin = f", restored from a backup of {time}," if (time := backup()) else ""
        raise CheckpointError(_unfit(numbers, origin, task.settled))

    def restore(self, number: int, clients: ClientRuntime, member: int, roster: Roster) -> None:
        """Restore clients to the silo's state after round ``number``, which is here."""
        stored = checkpoint.read(dict(committed(self.folder))[number])
        state: dict[str, Tensor] = {k: t for k, t in stored.tensors.items() if k != ANSWER}
        clients.restore((member,), state, roster)

    def restore_own_best(self, task: Task, base: int, clients: ClientRuntime) -> None:
        """Restore the best model that evaluations since round ``base`` have found, before the
        task's round.
        """
        for number, path in reversed(committed(self.folder / EVALUATED)):
            if base <= number < task.number:
                stored = checkpoint.read(path)
                if (stored.meta["run"], stored.meta["base"]) == (task.run, base):
                    for name in stored.tensors:
                        clients.store.recorded.restore(name, stored.tensors[name])
                    return

    def agree(self, clients: ClientRuntime, member: int) -> None:
        """Raise PrivacyError unless the client's ledger continues from the last round here,
        whichever is settled.
        """
        newest, _ = checkpoint.newest(self.folder)
        if newest:
            client_queries.agree(clients, member, {member: newest.meta["position"]})

    def secret(self, task: Task) -> str:
        """The private key for the sum of this exact task's round, in hex; "" if there is none."""
        path = dict(committed(self.folder)).get(task.number)
        meta = checkpoint.read(path).meta if path else {}
        return str(meta["secret"]) if meta.get("task") == task.question else ""

    def save(
        self,
        task: Task,
        base: int,
        clients: ClientRuntime,
        answer: Answer,
        uplink: bytes,
        secret: str = "",
    ) -> None:
        """Publish a trained round, with its answer, and the private key for its sum, if any.

        The round that it continued from, ``base``, stays, however many rounds have failed since;
        and so does its predecessor, since a server that loses its newest checkpoint goes back to
        it.
        """
        stored = clients.store.stored(task.place) | clients.store.copies.stored((task.place,))
        stored[ANSWER] = torch.from_numpy(np.frombuffer(uplink, dtype=np.uint8).copy())
        meta = {
            "task": task.question,
            "answer": answer.model_dump_json(),
            "position": client_queries.position(clients, task.place),
            "settled": base,
            "secret": secret,
        }
        spare = {base, self._predecessor(base)}
        checkpoint.save(
            self.folder, task.number, stored, meta, keep_rounds=ROUNDS_KEPT, spare=spare
        )

    def keep_evaluation(
        self, task: Task, base: int, clients: ClientRuntime, answer: Answer
    ) -> None:
        """Keep the answer to an evaluation, replacing the previous one, and the own best model.

        Raises OSError, StorageError.
        """
        choice = clients.store.recorded.choice
        if choice.rule == "own_best":
            meta = {"run": task.run, "base": base}
            tensors = choice.stored(task.place)
            folder = self.folder / EVALUATED
            checkpoint.save(folder, task.number, tensors, meta, keep_rounds=ROUNDS_KEPT)
        write_json(self.folder / EVALUATION, LastEvaluation(question=task.question, answer=answer))

    def _predecessor(self, number: int) -> int:
        """The round that round ``number`` continued from; 0 for none, or if unknown."""
        path = dict(committed(self.folder)).get(number)
        return int(checkpoint.read(path).meta.get("settled", 0)) if path else 0


class RowCache:
    """Model rows in one folder, one file each, named by the SHA-256 of its bytes.

    A name that is not such a hash is refused before any disk access.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def digests(self) -> tuple[str, ...]:
        """Hashes of all cached rows, sorted."""
        if not self._folder.is_dir():
            return ()
        return tuple(
            sorted(path.name for path in self._folder.iterdir() if DIGEST.fullmatch(path.name))
        )

    def missing(self, needed: Iterable[str], enclosed: Mapping[str, bytes]) -> tuple[str, ...]:
        """Hashes of rows that are neither enclosed nor cached, sorted.

        Raises ProtocolError for an invalid hash.
        """
        return tuple(sorted(d for d in needed if d not in enclosed and not self._path(d).exists()))

    def rows(self, needed: Iterable[str], enclosed: Mapping[str, bytes]) -> dict[str, bytes]:
        """The bytes of rows by hash, none of which may be missing; nothing is written.

        Raises ProtocolError for bytes that do not match their hash, or that are not needed.
        """
        requested = set(needed)
        if any(
            digest not in requested or sha256(data) != digest for digest, data in enclosed.items()
        ):
            raise ProtocolError("a received row does not match its hash; check the connection")
        return {
            digest: enclosed[digest] if digest in enclosed else self._row(digest)
            for digest in requested
        }

    def replace(self, rows: Mapping[str, bytes]) -> None:
        """Keep exactly these rows, by hash."""
        for digest in set(self.digests) - set(rows):
            self._path(digest).unlink()
        for digest in set(rows) - set(self.digests):
            publish_by_hash(self._folder, [rows[digest]])

    def _row(self, digest: str) -> bytes:
        data = content(self._path(digest), WEIGHTS)
        if sha256(data) != digest:
            self._path(digest).unlink()
            raise ProtocolError("a stored row has changed on disk; it will be fetched again")
        return data

    def _path(self, digest: str) -> Path:
        """The only function that builds a path from a name."""
        if not DIGEST.fullmatch(digest):
            raise ProtocolError("a row is not named by its SHA-256; check the server's version")
        return self._folder / digest
