"""A silo's part in the sum of a round: its clipped and weighted change of the model, masked.

The change and the private key of its masks are kept with the round before its public key is told,
so that after a kill the same request gets the same bytes. A silo takes part in one sum a round.
"""

import logging
from dataclasses import dataclass, replace

import numpy as np

from pomona.core.errors import ProtocolError
from pomona.core.fixed_point import Numbers, encoded
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Reply
from pomona.federation.noise_in_sums import coarse, noise_adds_up
from pomona.federation.round_plan import round_of
from pomona.federation.secure_sum import change, receiver_tensors, weighed
from pomona.methods.base import Downlink
from pomona.storage.tensor_validation import non_finite
from pomona_federation.messages.masks import masked, public
from pomona_federation.messages.message_bodies import (
    Answer,
    MaskKey,
    SumRequest,
    Task,
    mask_statement,
)
from pomona_federation.messages.tensor_bytes import sha256
from pomona_federation.silo.round_store import RoundStore
from pomona_federation.silo.row_provenance import Provenance, names
from pomona_federation.silo.silo_in_study import Silo, audited
from pomona_federation.silo.silo_scenario import roster_of
from pomona_federation.silo.task_policy import TaskLog

logger = logging.getLogger("pomona")


@dataclass(frozen=True)
class MaskedPart:
    """A silo's parts in the sums of a study with secure aggregation."""

    silo: Silo
    terms: SecureAggregation

    @classmethod
    def of(cls, silo: Silo) -> "MaskedPart | None":
        """The parts of a silo; None in a study without secure aggregation."""
        terms = silo.agreed.config.secure_aggregation
        return cls(silo, terms) if terms else None

    def change(self, reply: Reply, task: Task, down: Downlink) -> tuple[Reply, bytes, float]:
        """A reply to a task as the server gets it, the change to keep for the sum, and its norm
        before clipping.

        The server gets no uplink, and a fault in place of one that is not finite, or of numbers too
        coarse for its noise.
        """
        config, came = self.silo.agreed.config, receiver_tensors(down, 0)
        rest = replace(reply, uplink={})
        if reply.fault or not reply.uplink:
            return rest, b"", 0.0
        if why := non_finite(reply.uplink):
            return replace(rest, fault=f"diverged: {why}"), b"", 0.0
        roster, lr = roster_of(task, config), round_of(config, task.number).lr
        if why := coarse(came, roster.sizes[task.place], roster, lr, config):
            return replace(rest, fault=why), b"", 0.0
        moved, norm = change(reply.uplink, came, config)
        if norm > self.terms.max_norm and not noise_adds_up(config):
            logger.info("the change has norm %.3g and is clipped", norm)
        return rest, moved.astype("<f4").tobytes(), norm

    def size(self, kept: bytes) -> int:
        """The bytes of the part in a sum that a kept change becomes."""
        return len(kept) * self.terms.bits // 32

    @staticmethod
    def require_common(task: Task) -> None:
        """Raise ProtocolError for a starting model that is none of the rows that all silos of a sum
        have received.

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
        kept, secret = rounds.answered(task), rounds.secret(task)
        if not task.trains or not kept or not secret:
            raise ProtocolError(f"a sum of round {task.number}, in which this silo has not trained")
        keys = {place: shown.key for place, shown in request.keys.items()}
        if keys.get(task.place) != public(secret):
            raise ProtocolError("a sum without this silo's key; check the server's version")
        if len(keys) < self.terms.minimum:
            raise ProtocolError(
                f"a sum over {len(keys)} silos, secure_aggregation.minimum is {self.terms.minimum}"
            )
        provenance.require_mask_keys(task, request.keys)
        roster = roster_of(task, self.silo.agreed.config)
        weight = weighed(roster, tuple(sorted(keys)))[task.place]
        moved: Numbers = np.frombuffer(kept[1], "<f4")
        words = masked(
            encoded(moved, weight, self.terms), secret, task.place, keys, request.context
        )
        log.one_sum(request)  # only now: a key that is none spoils no sum without it
        peers = names(self.silo.agreed, task)
        audited(self.silo, "sum", round=task.number, silos=[peers[i] for i in sorted(keys)])
        uplink = words.tobytes()
        about = {"agreement": task.agreement, "run": task.run, "number": task.number}
        return Answer(
            **about,
            silo=self.silo.file.name,
            task=request.digest,
            samples=kept[0].samples,
            uplink=sha256(uplink),
        ), uplink
