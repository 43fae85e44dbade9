"""Secure aggregation without messages: a silo's and the server's seconds, bytes, and the error.

    python benchmarks/secure_aggregation.py [--quick]

Seconds are processor time. "silo s" is a silo's part as in a round: the signatures of all keys
verified, the change clipped and made integers, a key agreement and a mask for each peer. "plain s"
is what it does without: the change as bytes. "server s" adds all parts. "error" is the largest
difference of a number from the weighted mean in float64, "bound" what ``core.fixed_point`` states.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from pomona.core.fixed_point import Integers, Numbers, clipped, decoded, encoded, error
from pomona.core.rng import stream
from pomona.core.round import Roster
from pomona.core.training_settings import SecureAggregation
from pomona_federation import keys
from pomona_federation.messages.tensor_bytes import masked, new_secret, public
from timing import Table, chosen, cpu_seconds, measured, publish

FULL, QUICK = ((4, 12, 50), 582_026, 5), ((2,), 100, 1)  # silos, numbers of a model, turns
CONTEXT = "ab" * 32


class Silos:
    """Silos with random changes, sample counts and keys."""

    def __init__(self, count: int, numbers: int, terms: SecureAggregation) -> None:
        draw = stream(0, "noise")
        self.terms = terms
        self.changes = draw.standard_normal((count, numbers), np.float32)
        self.changes *= np.float32(terms.max_norm / 2 / np.sqrt(numbers))
        roster = Roster(tuple(draw.integers(100, 1000, count).tolist()), 0.5)
        self.weights = roster.weights(tuple(range(count))).numpy()
        self.secrets = {i: new_secret() for i in range(count)}
        self.mask_keys = {i: public(secret) for i, secret in self.secrets.items()}
        pairs = [keys.silo() for _ in range(count)]
        self.public = [pair.public.decode() for pair in pairs]
        with TemporaryDirectory() as folder:
            self.signed = []
            for i, pair in enumerate(pairs):
                path = Path(folder) / f"{i}"
                path.write_bytes(pair.private)
                self.signed.append(keys.Signer(path).sign("mask", {"key": self.mask_keys[i]}))

    def verify(self) -> None:
        """Verify all keys, as every silo does."""
        for i, signature in enumerate(self.signed):
            assert keys.signed(self.public[i], "mask", {"key": self.mask_keys[i]}, signature)

    def masked_change(self, i: int) -> Integers:
        """A silo's part of the sum."""
        change, _ = clipped(self.changes[i], self.terms.max_norm)
        integers = encoded(change, float(self.weights[i]), self.terms)
        return masked(integers, self.secrets[i], i, self.mask_keys, CONTEXT)

    def silo(self) -> None:
        """The work of one silo."""
        self.verify()
        self.masked_change(0).tobytes()

    def plain(self) -> bytes:
        """The work of one silo without masks."""
        change: Numbers = self.changes[0]
        return change.tobytes()


def added(uplinks: list[bytes], total: Integers) -> None:
    """Add parts, as the server does."""
    for uplink in uplinks:
        total += np.frombuffer(uplink, total.dtype)


def measure(count: int, numbers: int, bits: int, turns: int) -> Table:
    """One row."""
    silos = Silos(count, numbers, SecureAggregation(max_norm=10.0, minimum=2, bits=bits))
    cpu = measured({"silo": silos.silo, "plain": silos.plain}, turns)[1]
    uplinks = [silos.masked_change(i).tobytes() for i in range(count)]
    total = np.zeros(numbers, f"<u{bits // 8}")
    server = cpu_seconds(partial(added, uplinks, total))
    mean = np.einsum("n,nd->d", silos.weights, silos.changes.astype(np.float64))
    return {
        "MB up": len(uplinks[0]) / 1e6,
        "plain MB up": len(silos.plain()) / 1e6,
        "silo s": cpu.median("silo"),
        "plain s": cpu.median("plain"),
        "server s": server,
        "error": float(np.abs(decoded(total, silos.terms) - mean).max()),
        "bound": error(silos.terms, count),
    }


def main(size: tuple[tuple[int, ...], int, int], arguments: list[str]) -> list[Table]:
    """Measure and print."""
    assert not arguments, arguments
    counts, numbers, turns = size
    rows = {
        f"{count} silos, {bits} bits": measure(count, numbers, bits, turns)
        for bits in (32, 64)
        for count in counts
    }
    return [publish("Secure aggregation of one round", rows, turns, numbers=numbers)]


if __name__ == "__main__":
    main(*chosen(QUICK, FULL))
