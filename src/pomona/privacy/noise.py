"""The Gaussian mechanism on per-sample gradients (Poisson sampling, clipping, noise), and a
client's key store: its secret noise key, for sampling and noise, and its ledger of releases.

    FOLDER/client-03/key            32 bytes in hex, drawn once from the system's entropy; mode 0600
    FOLDER/client-03/ledger.jsonl   see ``ledger``; mode 0600

Abadi et al., Deep learning with differential privacy, CCS 2016; with Poisson sampling and a public
denominator, as its analysis requires. The address of the noise ends with the release's name, a
keyed hash of everything that the release depends on: the batch, the model, the settings, and the
clipped sum itself. Repeating a release gives the same noise and reveals nothing new; any other
release has independent noise, also if a server asks twice about one round, so that no differences
can be formed. A release that leaves in sums alone is another one in each run: in two sums over
different clients the same noise would cancel.
"""

import hashlib
import os
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pomona.core.errors import BudgetError, ConfigError, PrivacyError
from pomona.core.files import publish, text
from pomona.core.rng import stream
from pomona.privacy.accounting import Budget, epsilon, of_groups, rate, with_room
from pomona.privacy.ledger import Draw, Head, Ledger, LedgerEntry, Position
from pomona.privacy.settings import Privacy

BELOW = 1 - 2**-20  # more than the possible rounding error of a norm


def poisson(n: int, q: float, generator: np.random.Generator) -> NDArray[np.int64]:
    """Draw a Poisson sample of range(n), ascending: each independently with probability q; may be
    empty.
    """
    return np.flatnonzero(generator.random(n) < q)


def clipped(P: Tensor, C: float) -> Tensor:
    """Clip per-sample gradients (b, d) to norm C, float64; zeros for gradients that are not finite.

    Dropping a non-finite gradient is part of the mechanism: any sample may have norm 0. Factors and
    products are
    float64: in float32 the factor of a huge gradient is subnormal, and its rounding would exceed C.
    """
    norms = torch.linalg.vector_norm(P, dim=1, dtype=torch.float64)
    factors = (C * BELOW / norms).clamp(max=1.0)
    return torch.where(norms.isfinite().unsqueeze(1), P.double() * factors.unsqueeze(1), 0)


def gaussian(d: int, generator: np.random.Generator) -> Tensor:
    """Draw N(0, 1) (d,) float64, each number half the sum of four draws.

    A single floating-point draw can be recognised by the gaps between its possible values (Mironov,
    CCS 2012); sums make that hard (Holohan and Braghin, ESORICS 2021).
    """
    return torch.from_numpy(generator.standard_normal((4, d)).sum(0) / 2)


@dataclass
class KeyStore:
    """A client's key and ledger, open."""

    client: int
    settings: Privacy
    ledger: Ledger
    _key: bytes
    run: str = ""
    _budget: Budget = field(init=False)
    _run_budget: Budget | None = None  # upper bound of the run's cost

    def __post_init__(self) -> None:
        self._budget = Budget(self.settings)

    @classmethod
    def open(
        cls,
        folder: Path,
        client: int,
        settings: Privacy,
        checkpoint: Position | None = None,
        run: str = "",
    ) -> "KeyStore":
        """Open a client's key store; create it if missing.

        Args:
            folder: of all clients' key stores.
            client: the client's id.
            settings: the run's privacy.
            checkpoint: the ledger's position in a checkpoint; the ledger must then exist and
                continue from it.
            run: id of the run, if several share the store.

        Raises:
            PrivacyError: key or ledger is missing, damaged, or readable by others, or they do not
                belong together.
            ConfigError: the key store was created with another test seed, or without one.
            LockedError: another process has it open.
        """
        store = _client_folder(folder, client)
        key, ledger = store / "key", store / "ledger.jsonl"
        if checkpoint and not key.exists() and not ledger.exists():
            raise PrivacyError(
                f"{store}: key and ledger of client {client} are missing, but a checkpoint "
                f"records {checkpoint.entries} entries; restore both"
            )
        if not key.exists():
            _make(key, ledger, client, settings.seed)
        secret = _secret(key)
        account = Ledger.open(ledger)
        if account.head.test_seed != settings.seed:
            raise ConfigError(
                f"privacy.seed = {settings.seed}, but {ledger} was started with "
                f"{account.head.test_seed}, which cannot change; give a new folder"
            )
        if account.head != Head(client, fingerprint(secret), settings.seed):
            raise PrivacyError(
                f"{ledger} belongs to another client or key; restore key and ledger together"
            )
        if checkpoint:
            account.require(checkpoint)
        if other_units := account.units() - {settings.unit}:
            raise PrivacyError(
                f"{ledger} counts releases per {other_units.pop()}, but privacy.unit is "
                f"{settings.unit!r}; keep the unit, or give a new folder"
            )
        return cls(client, settings, account, secret, run)

    def within(self, limit: float) -> None:
        """Limit epsilon to the projected cost of the whole run; further releases are refused."""
        if isfinite(limit):
            self._run_budget = Budget(
                self.settings.model_copy(update={"epsilon_budget": with_room(self.settings, limit)})
            )

    def batch(self, draw: Draw, groups: Tensor | None = None) -> Tensor:
        """Return the Poisson sample at an address: positions (b,) int64 among the client's n rows,
        ascending.

        ``groups``: (n,) int64 number of each row's group, from 0; each group is drawn whole, with
        the probability of a row.
        """
        address = (draw.round, draw.step, draw.n, draw.size)
        generator = self._stream(f"sample {draw.purpose}", *address)
        if groups is None:
            return torch.from_numpy(poisson(draw.n, rate(draw.n, draw.size), generator))
        chosen = poisson(len(groups.bincount()), rate(draw.n, draw.size), generator)
        return torch.isin(groups, torch.from_numpy(chosen).to(groups.device)).nonzero().flatten()

    def release(self, draw: Draw, question: Tensor, total: Tensor) -> Tensor:
        """Return the clipped sum ``total`` (d,) with noise, float64, after recording it in the
        ledger.

        Args:
            draw: its batch.
            question: the model row (d,) at which it was computed.
            total: sum of gradients clipped to the settings' norm.

        Raises:
            BudgetError: the release would exceed the budget; it is neither made nor recorded.
            StorageError: the ledger cannot be written.
        """
        name = self._name(draw, question, total)
        honest = self.settings.counted(draw.purpose)
        sigma, unit = self.settings.noise_multiplier, self.settings.unit
        self._spend(LedgerEntry(draw, sigma, name, honest, unit))
        noise = gaussian(len(total), self._stream("noise", int(name, 16))).to(total.device)
        return total + sigma * self.settings.max_grad_norm * noise

    def unprotected(self, draw: Draw, question: Tensor) -> None:
        """Record a release without noise; epsilon is infinite from here on.

        Raises as ``release`` does.
        """
        name = self._name(draw, question, question)
        self._spend(LedgerEntry(draw, 0.0, name, unit=self.settings.unit))

    def forward_seed(self, draw: Draw, question: Tensor) -> int:
        """Return a 60-bit seed for dropout masks: secret, and the same when a release is
        repeated.
        """
        return int(self._name(draw, question, question)[:15], 16)

    def view_seed(self, draw: Draw) -> int:
        """Return a 60-bit seed for a batch's augmentation: secret, and the same for all releases on
        the batch.
        """
        return int(self._name(draw)[:15], 16)

    def epsilon(self, rows: int = 1) -> float:
        """Return epsilon so far, for so many rows of one group together."""
        return epsilon(self.settings, of_groups(self.ledger.history(), rows))

    def epsilon_alone(self) -> float:
        """Return epsilon so far by the client's own noise alone."""
        return epsilon(self.settings, self.ledger.own_events())

    def position(self) -> Position:
        """Current position of the ledger."""
        return self.ledger.position()

    def _spend(self, entry: LedgerEntry) -> None:
        context = f"client {self.client}, round {entry.draw.round}, step {entry.draw.step}"
        history = self.ledger.history(entry)
        if self._run_budget and not self._run_budget.allows(history):
            raise BudgetError(
                f"{context}: another release would exceed the projected highest cost "
                f"({self.epsilon():.4g} spent); the server asks for more than the method's rounds "
                "cost: ask its operator, or begin a new study"
            )
        if not self._budget.allows(history):
            raise BudgetError(
                f"{context}: another release would exceed privacy.epsilon_budget = "
                f"{self.settings.epsilon_budget} ({self.epsilon():.4g} spent); raise it and "
                "continue with --resume (in a silo: raise accept_epsilon too), or stop here"
            )
        self.ledger.append(entry)

    def _stream(self, purpose: str, *address: int) -> np.random.Generator:
        return stream(int.from_bytes(self._key, "little"), purpose, *address)

    def _name(self, draw: Draw, *tensors: Tensor) -> str:
        settings, name = self.settings, hashlib.blake2b(key=self._key, digest_size=32)
        name.update(repr((draw, settings.noise_multiplier, settings.max_grad_norm)).encode())
        if settings.unit != "row":
            name.update(settings.unit.encode())
        if settings.counted(draw.purpose) > 1 and settings.seed is None:
            name.update(self.run.encode())
        for tensor in tensors:
            name.update(tensor.detach().cpu().contiguous().numpy().data)
        return name.hexdigest()


def fingerprint(key: bytes) -> str:
    """Return a key's fingerprint for the ledger's head: 128 bits of BLAKE2b, in hex."""
    return hashlib.blake2b(key, digest_size=16, person=b"pomona-key").hexdigest()


def require_sole(folder: Path, client: int) -> None:
    """Raise PrivacyError unless a folder has only this client's key store: one data set has one
    account.
    """
    foreign = sorted(
        store.name for store in folder.glob("client-*") if store != _client_folder(folder, client)
    )
    if foreign:
        raise PrivacyError(
            f"{folder} holds {', '.join(foreign)} next to {_client_folder(folder, client).name}: "
            "the epsilon spent there would not count; find out who gave this silo another place, "
            "then move that account away"
        )


def _client_folder(folder: Path, client: int) -> Path:
    return folder / f"client-{client:02d}"


def _make(key: Path, ledger: Path, client: int, seed: int | None) -> None:
    """Create a key and its ledger. Raises PrivacyError if the ledger has entries.

    The ledger is created first: without entries and without a key, it is an interrupted creation.
    """
    if ledger.exists() and Ledger.open(ledger).position().entries:
        raise PrivacyError(f"{key}: the key of a privacy ledger is missing; restore it")
    key.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    secret = (
        os.urandom(32)
        if seed is None
        else hashlib.blake2b(f"{seed}/{client}".encode(), digest_size=32).digest()
    )
    Ledger.create(ledger, Head(client, fingerprint(secret), seed))
    publish(key, [secret.hex().encode()], "key.unfinished", 0o600)


def _secret(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise PrivacyError(
            f"{path} can be read by others; anyone who has read it can remove the noise: chmod "
            "600, or start over"
        )
    try:
        key = bytes.fromhex(text(path, 1000))
    except ValueError:
        key = b""
    if len(key) != 32:
        raise PrivacyError(f"{path} is not a key of 32 bytes in hex; restore it")
    return key
