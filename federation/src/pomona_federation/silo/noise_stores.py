"""A silo's noise key and its ledger: sealed to this machine, and complete again after a restore.

The privacy spent between a backup and its restore is unknown, so the largest possible amount
counts.

A restored silo has its ledger as of the backup. Its later releases are forgotten, although others
have them. A silo trains each round once and evaluates it once, so its possible releases in the
rounds after the last one in the backup can be listed: everything that its method asks of those
rounds, whatever the server has sent. These releases are entered into the ledger at their original
addresses, before any other is made: two of one batch then count as two of one batch.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pomona.core.bounds import Number
from pomona.core.errors import PrivacyError
from pomona.core.files import publish, text, writing
from pomona.core.settings import Settings
from pomona.core.training_settings import Passes
from pomona.objective.private import PrivateObjective
from pomona.privacy.accounting import Gradients, epsilon, steps
from pomona.privacy.ledger import Draw, LedgerEntry
from pomona.privacy.settings import Privacy
from pomona.scenario import Scenario
from pomona.storage.run_status import last_round
from pomona_federation.json_store import is_sealed, read_json, seal, write_json
from pomona_federation.messages.message_bodies import Token

SEAL = "seal"
KEY_STARTED, KEY = "noise key begun", "noise key"


def open_own(stores: Path, objective: PrivateObjective, member: int) -> None:
    """Open a place's key store, or create and seal it.

    Raises:
        PrivacyError: its key was not made on this machine; or as ``KeyStore.open``.
        StorageError: the seal cannot be written, or the machine has no id.
    """
    folder = stores / f"client-{member:02d}"
    if not any((folder / name).exists() for name in ("key", "ledger.jsonl")):
        # a kill between key and seal leaves one that was started here
        _write(folder, seal(KEY_STARTED, folder.name))
    store = objective.key_store(member)
    current_seal = text(folder / SEAL, 1000).strip() if (folder / SEAL).exists() else ""
    if is_sealed(current_seal, KEY_STARTED, folder.name) and not store.position().entries:
        _write(folder, _seal(folder))
    elif current_seal != _seal(folder):
        raise PrivacyError(
            f"{folder / 'key'} was not made on this machine: whoever made it can remove the noise; "
            "stop, find out where it came from, and restore an earlier backup with `pomona silo "
            "restore`"
        )


def reseal_key(folder: Path) -> None:
    """Seal a restored key as this machine's. Raises StorageError."""
    _write(folder, _seal(folder))


def _seal(folder: Path) -> str:
    return seal(KEY, f"{folder.name} {text(folder / 'key', 1000).strip()}")


def _write(folder: Path, value: str) -> None:
    with writing(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        publish(folder / SEAL, [value.encode()], f".{SEAL}", 0o600)


class Restored(Settings):
    """One restore, kept next to the key stores until its lost rounds are in the ledger.

    ``after``: the last round in the backup; ``until``: the last one that may have been trained
    since, None for unknown.
    """

    token: Token
    until: Number | None = None
    after: Number = 0


def mark(ledger: Path, restored: Restored) -> None:
    """Mark a restored ledger's key store as missing what was spent since its backup. Raises
    OSError.
    """
    stores = ledger.parent.parent
    state = stores.parent.parent
    write_json(
        stores / f"restored-{restored.token}.json",
        restored.model_copy(update={"after": last_round(state)}),
    )


def charge(
    stores: Path,
    objective: PrivateObjective,
    scenario: Scenario,
    member: int,
    reserve: Callable[[str, float], None],
) -> None:
    """Enter the possible releases before restores into a silo's ledger; repeated after a kill, they
    count once.

    Args:
        stores: the folder of key stores.
        objective: with the silo's key store.
        scenario: of all places, this silo's data among them.
        member: the silo's.
        reserve: called with a restore's token and the epsilon of the ledger with all rounds that
            may still come.
    """
    for path in sorted(stores.glob("restored-*.json")):
        if restored := read_json(Restored, path):
            store, config = objective.key_store(member), scenario.config
            run = PrivateRun(
                store.settings,
                config.method.method().card.privacy.gradients,
                len(scenario.partition.clients[member].train),
                config.batch_size,
                config.passes,
                config.rounds,
            )
            for entry in run.lost(restored):
                store.ledger.append(entry)
            possible = store.ledger.planned(run.remaining(restored))
            reserve(restored.token, epsilon(store.settings, possible))
        path.unlink()


@dataclass(frozen=True)
class PrivateRun:
    """The releases that a run can ask of a silo.

    Attributes:
        settings: the run's privacy.
        requested: the gradients that the method asks for.
        n: training samples.
        size: of a batch.
        passes: over the data in a round.
        rounds: of the run.
    """

    settings: Privacy
    requested: Sequence[Gradients]
    n: int
    size: int
    passes: Passes
    rounds: int

    def lost(self, restored: Restored) -> Iterator[LedgerEntry]:
        """The largest possible releases in the rounds lost by a restore.

        A server may ask in every round, if it lets them begin at the same state, for what a method
        asks once in a run; and a round may be evaluated with its training and again after it.
        """
        for number, index, gradients in self._visits(restored.after, restored.until):
            times = 2 if gradients.evaluates and number <= self.rounds else 1
            yield from self._releases(f"{restored.token} {index}", number, gradients, times)

    def remaining(self, restored: Restored) -> Iterator[LedgerEntry]:
        """Releases that an honest server may still ask for after a restore."""
        for number, index, gradients in self._visits(restored.after):
            if number == restored.after + 1 or not gradients.once:
                yield from self._releases(f"{restored.token} to come {index}", number, gradients)

    def _visits(
        self, previous: int, final: int | None = None
    ) -> Iterator[tuple[int, int, Gradients]]:
        """The rounds after one, up to another, each with the number and kind of its gradients; the
        last visit is one more round.
        """
        last = self.rounds + 1 if final is None else min(final, self.rounds + 1)
        for number in range(previous + 1, last + 1) if self.n else ():
            for index, gradients in enumerate(self.requested):
                if number <= self.rounds or gradients.evaluates:
                    yield number, index, gradients

    def _releases(
        self, name: str, number: int, gradients: Gradients, times: int = 1
    ) -> Iterator[LedgerEntry]:
        """The releases of one kind in a round, each under its own name."""
        for step in range(gradients.batches(self.passes, steps(self.n, self.size))):
            draw = Draw(number, gradients.purpose, step, self.n, self.size)
            for k in range(times * gradients.per_batch):
                release = hashlib.blake2b(f"{name} {draw} {k}".encode(), digest_size=32).hexdigest()
                sigma = self.settings.noise_multiplier if gradients.noised else 0.0
                honest = self.settings.counted(draw.purpose)
                yield LedgerEntry(draw, sigma, release, honest, self.settings.unit)
