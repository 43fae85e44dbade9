"""A silo's part in the sum of a round: its clipped and weighted change of the model, masked.

The change, not clipped yet, and the private key of its masks are kept with the round before its
public key is sent, so that after a kill the same request gets the same bytes. A silo takes part in
one sum a round.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from pydantic import Field

from pomona.core.bounds import Sha256
from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import Numbers, encoded
from pomona.core.settings import Settings
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Reply
from pomona.federation.noise_in_sums import coarse, noise_adds_up
from pomona.federation.round_plan import round_of
from pomona.federation.secure_sum import change, limited, receiver_tensors, weighed
from pomona.methods.base import Downlink
from pomona.storage.lock import waiting_lock
from pomona.storage.tensor_validation import non_finite
from pomona_federation.json_store import read_sealed, write_sealed
from pomona_federation.messages.message_bodies import (
    Answer,
    MaskKey,
    SumRequest,
    Task,
    Token,
    mask_statement,
)
from pomona_federation.messages.tensor_bytes import masked, public, sha256
from pomona_federation.silo.round_store import RoundStore
from pomona_federation.silo.row_provenance import Provenance, names
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.silo_scenario import roster_of
from pomona_federation.silo.task_policy import TaskLog

logger = logging.getLogger("pomona")

MAX_SUMS = 5_000  # newest sums that a silo remembers: a file of at most 2 MB


class PastSum(Settings):
    """A sum that a silo has masked its part in: hashes of its change before clipping, and of the
    sum's ``max_norm`` and silos with their weights.
    """

    change: Sha256
    agreement: Sha256
    run: Token
    terms: Sha256


class PastSums(Settings):
    """A silo's sums in all its studies, oldest first, in ``state/sums.json``."""

    sums: tuple[PastSum, ...] = Field((), max_length=MAX_SUMS)

    @classmethod
    @contextmanager
    def noting(cls, kit: Path, current: PastSum) -> Iterator[None]:
        """Record a sum, durably, unless the body of ``with`` refuses it.

        Raises ProtocolError, before the body, if the same change, to the bit, was summed over other
        silos, with other weights or another ``max_norm``: where all silos repeat theirs, as with
        one seed or in a round again, the difference of the two sums is the change of those that
        only one of them has, or that only one clips.
        """
        path = kit / "state" / "sums.json"
        with waiting_lock(path.with_name(".sums.lock")):
            sums = (read_sealed(cls, path) or cls()).sums
            for past in sums:
                if past.change == current.change and past.terms != current.terms:
                    raise ProtocolError(
                        f"run {past.run} of study {past.agreement[:16]} has summed the same change "
                        "over other silos, or with other weights or max_norm; both sums together "
                        "could reveal single silos' changes: have the same silos take part on the "
                        "same terms, or give the study another seed"
                    )
            yield
            if current not in sums:
                write_sealed(path, cls(sums=(*sums, current)[-MAX_SUMS:]))


@dataclass(frozen=True)
class MaskedPart:
    """A silo's parts in the sums of a study with secure aggregation."""

    silo: Silo
    aggregation: SecureAggregation

    @classmethod
    def for_silo(cls, silo: Silo) -> "MaskedPart | None":
        """The parts of a silo; None in a study without secure aggregation."""
        aggregation = silo.terms.config.secure_aggregation
        return cls(silo, aggregation) if aggregation else None

    def change(self, reply: Reply, task: Task, downlink: Downlink) -> tuple[Reply, bytes, float]:
        """A reply to a task as the server gets it, the change to keep for the sum, not clipped, and
        its norm.

        The server gets no uplink, and a fault in place of one that is not finite, or of numbers too
        coarse for its noise.
        """
        config, received = self.silo.terms.config, receiver_tensors(downlink, 0)
        without_uplink = replace(reply, uplink={})
        if reply.fault or not reply.uplink:
            return without_uplink, b"", 0.0
        if problem := non_finite(reply.uplink):
            return replace(without_uplink, fault=f"diverged: {problem}"), b"", 0.0
        roster, lr = roster_of(task, config), round_of(config, task.number).lr
        if problem := coarse(received, roster.sizes[task.place], roster, lr, config):
            return replace(without_uplink, fault=problem), b"", 0.0
        delta = change(reply.uplink, received)
        _, norm = limited(delta, config)
        if norm > self.aggregation.max_norm and not noise_adds_up(config):
            logger.info("the change has norm %.3g and is clipped", norm)
        return without_uplink, delta.astype("<f4").tobytes(), norm

    def size(self, stored: bytes) -> int:
        """The bytes of the part in a sum that a kept change becomes."""
        return len(stored) * self.aggregation.bits // 32

    @staticmethod
    def require_common(task: Task) -> None:
        """Raise ProtocolError for a starting model that is not among the rows that all silos of a
        sum have received.

        Masks are bound to these alone; with a starting model of its own each silo could be made to
        send a change that the server knows.
        """
        common = {digest for entry in task.downlink.values() for digest in entry.rows.values()}
        if task.start and task.start not in common:
            raise ProtocolError(
                "a starting model for this silo alone, in a study with secure aggregation; check "
                "the server's version"
            )

    def key(self, task: Task, secret: str) -> MaskKey:
        """This silo's public key for the sum of a task's round, signed."""
        name, key = self.silo.file.name, public(secret)
        return MaskKey(
            key=key, signature=self.silo.signer.sign("mask", mask_statement(task, name, key))
        )

    def answer(
        self, request: SumRequest, rounds: RoundStore, log: TaskLog, provenance: Provenance
    ) -> tuple[Answer, bytes]:
        """This silo's part in a sum, and its bytes; the request's task has been verified.

        Raises:
            ProtocolError: the silo has not trained in the round, the sum is over too few silos, a
                key in it is not its silo's, or it is not the sum of this round that this silo has
                taken part in.
        """
        task = request.task
        previous, secret = rounds.answered(task), rounds.secret(task)
        if not task.trains or not previous or not secret:
            raise ProtocolError(f"a sum of round {task.number}, in which this silo has not trained")
        keys = {member: mask_key.key for member, mask_key in request.keys.items()}
        if keys.get(task.place) != public(secret):
            raise ProtocolError("a sum without this silo's key; check the server's version")
        if len(keys) < self.aggregation.minimum:
            raise ProtocolError(
                f"a sum over {len(keys)} silos, but secure_aggregation.minimum is "
                f"{self.aggregation.minimum}"
            )
        provenance.require_mask_keys(task, request.keys)
        roster = roster_of(task, self.silo.terms.config)
        weights = weighed(roster, tuple(sorted(keys)))
        unclipped: Numbers = np.frombuffer(previous[1], "<f4")
        delta, _ = limited(unclipped, self.silo.terms.config)
        integers = encoded(delta, weights[task.place], self.aggregation)
        masked_change = masked(integers, secret, task.place, keys, request.context)
        peers, fields = names(self.silo.terms, task), {"agreement": task.agreement, "run": task.run}
        shares = {peers[member]: weight for member, weight in weights.items()}
        sum_terms = repr((shares, self.aggregation.max_norm)).encode()
        past_sum = PastSum(change=sha256(previous[1]), terms=sha256(sum_terms), **fields)
        noting = PastSums.noting(self.silo.folder, past_sum)
        with noting if unclipped.any() else nullcontext():  # zeros reveal nothing, with any seed
            log.one_sum(request)  # only now: a key that is none spoils no sum without it
        audited(self.silo, "sum", round=task.number, silos=tuple(shares))
        uplink = masked_change.tobytes()
        return Answer(
            **fields,
            number=task.number,
            silo=self.silo.file.name,
            task=request.digest,
            samples=previous[0].samples,
            uplink=sha256(uplink),
        ), uplink
