"""Secure aggregation at the server: the sum of a round from the silos' masked parts.

Silos train first and tell a key instead of an uplink. Then the server settles once over whom the
round is summed, those who have trained, and asks them for their masked parts: only all of these
together say something. A silo that is gone before that is left out at no cost; one that is gone
after it is waited for, since a second sum without it would reveal its model once its part comes
late.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from pydantic import Field
from torch import Tensor

from pomona.core.bounds import PLACES, Number, Place
from pomona.core.errors import listed
from pomona.core.fixed_point import Words, word
from pomona.core.settings import Settings
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.secure_sum import excess, mean, receiver_tensors
from pomona.methods.base import Downlink
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Refusal, SumRequest, Token
from pomona_federation.messages.message_bus import Message, untrusted
from pomona_federation.messages.tensor_bytes import Encoding, sha256
from pomona_federation.server.message_exchange import MessageExchange, OutgoingMessage
from pomona_federation.server.round_messages import AnswerReader, OutgoingTask
from pomona_federation.unused_uplinks import Reason, UnusableError, UnusedUplink

SUM = "sum.json"


class SettledSum(Settings):
    """The places over which a round is summed, in ``sum.json``: silos mask for these alone."""

    run: Token
    number: Number
    places: tuple[Place, ...] = Field(max_length=PLACES)


@dataclass
class OutgoingRequest(OutgoingMessage):
    """One silo's request for its masked part; ``bytes_up``: of its answer."""

    body: SumRequest
    bytes_up: int = 0

    @property
    def about(self) -> Mapping[str, object]:
        """Its round, and its hash."""
        return {"round": self.body.number, "task": self.body.digest}


@dataclass
class MaskedSums:
    """The sums of a run.

    Attributes:
        unused: why silos took no part in the last sum, or why there is none, by name.
    """

    terms: SecureAggregation
    exchange: MessageExchange
    reader: AnswerReader
    encoding: Encoding
    unused: dict[str, UnusedUplink] = field(default_factory=dict)

    def of_round(
        self,
        arrivals: Mapping[int, Arrival],
        tasks: Mapping[int, OutgoingTask],
        request: ClientRequest,
        down: Downlink,
    ) -> dict[int, Arrival]:
        """The arrivals of a round whose silos have trained, each with the mean as its uplink.

        Empty without a sum; silos that are not in it are left out, but for faults of their own.

        Args:
            arrivals: verified answers by place, without uplinks, in the order of arrival.
            tasks: that they answer, with the silos' keys.
            request: to the silos.
            down: what they received.
        """
        self.unused, number = {}, request.round.number
        ready = self._ready(number, arrivals, tasks)
        places = self._settled(number, ready)
        if not places:
            for place, arrival in arrivals.items():
                if fault := arrival.reply.fault:
                    self._leave_out(tasks[place].silo, number, Reason.DIVERGED, fault)
            return {}
        sent, total = self._parts(places, tasks, request)
        if total is None:
            return {}
        if why := excess(total, len(places), self.terms):
            for place in places:
                self._leave_out(tasks[place].silo, number, Reason.SUM_RANGE, why)
            return {}
        self.exchange.audit.write("sum", round=number, silos=[tasks[i].silo for i in places])
        uplink = self._mean(total, places[0], request, down)
        apart = {i: a for i, a in arrivals.items() if a.reply.fault or a.unread}
        return apart | {i: _summed(arrivals[i], uplink, sent[i].bytes_up) for i in places}

    def _ready(
        self, number: int, arrivals: Mapping[int, Arrival], tasks: Mapping[int, OutgoingTask]
    ) -> tuple[int, ...]:
        """The places of silos that have trained, without those that repeat the key of an earlier
        arrival: all other silos would refuse the sum.
        """
        silos: dict[str, str] = {}
        ready = []
        for place in arrivals:
            silo, mask = tasks[place].silo, tasks[place].mask
            if not mask:
                continue
            if (earlier := silos.setdefault(mask.key, silo)) == silo:
                ready.append(place)
                continue
            self._leave_out(silo, number, Reason.SUM_KEY, f"the same key as {earlier}")
        return tuple(sorted(ready))

    def _leave_out(self, silo: str, number: int, reason: Reason, detail: str = "") -> None:
        self.unused[silo] = UnusedUplink(silo=silo, round=number, reason=reason, detail=detail)

    def _mean(
        self, total: Words, place: int, request: ClientRequest, down: Downlink
    ) -> dict[str, Tensor]:
        """The mean uplink from the sum of a round, by what one of its silos received."""
        came = receiver_tensors(down, request.ids.index(place))
        came = {name: self.encoding.narrow(row).to(row.dtype) for name, row in came.items()}
        return mean(total, came, request.expects, self.terms)

    def _settled(self, number: int, ready: tuple[int, ...]) -> tuple[int, ...]:
        """The places over which a round is summed, durably before any silo is asked; empty if too
        few are ready, or not all of those that were settled before.
        """
        registry = self.exchange.registry
        path, names = registry.path.parent / SUM, [e.name for e in registry.entries]
        known = read_json(SettledSum, path, remedy="remove it: silos refuse a second sum")
        if known and (known.run, known.number) == (self.exchange.run, number):
            gone = [names[place] for place in known.places if place not in ready]
            without = f"without {listed(gone)}"
            for silo in gone:
                self._leave_out(silo, number, Reason.SUM_MISSING)
            for place in ready:
                if place not in known.places:
                    self._leave_out(names[place], number, Reason.SUM_LATE)
                elif gone:
                    self._leave_out(names[place], number, Reason.SUM_SHORT, without)
            return () if gone else known.places
        if len(ready) < self.terms.minimum:
            why = f"a sum needs {self.terms.minimum} silos, {len(ready)} have trained"
            for place in ready:
                self._leave_out(names[place], number, Reason.SUM_SHORT, why)
            return ()
        write_json(path, SettledSum(run=self.exchange.run, number=number, places=ready))
        return ready

    def _parts(
        self, places: Sequence[int], tasks: Mapping[int, OutgoingTask], request: ClientRequest
    ) -> tuple[Mapping[int, OutgoingRequest], Words | None]:
        """Ask for all parts; returns the requests, and the sum modulo 2^b: None if one is
        missing.
        """
        keys = {i: mask for i in places if (mask := tasks[i].mask)}
        number, numbers = request.round.number, sum(t.numel() for t in request.expects.values())
        total, added = np.zeros(numbers, word(self.terms)), set[int]()
        sent = {
            i: OutgoingRequest(tasks[i].silo, SumRequest(task=tasks[i].body, keys=keys))
            for i in places
        }

        def hear(place: int, message: Message) -> None:
            one = sent[place]
            try:
                with untrusted(Reason.SUM_PART):
                    part = self._part(place, one, message, numbers)
            except UnusableError as fault:
                one.fail(fault.reason, str(fault))
                return
            one.done = one.answered = True
            if place not in added:
                added.add(place)
                np.add(total, part, out=total)

        self.exchange.send_all(f"sum of round {number}", sent, hear)
        self.unused |= {o.silo: o.unused(number) for i, o in sent.items() if i not in added}
        if gone := [sent[i].silo for i in places if i not in added]:
            for i in added:
                self._leave_out(sent[i].silo, number, Reason.SUM_SHORT, f"without {listed(gone)}")
        return sent, total if added == set(places) else None

    def _part(self, place: int, one: OutgoingRequest, message: Message, numbers: int) -> Words:
        """A verified part. Raises UnusableError, also for a refusal."""
        answer = self.reader.verified(place, one, message)
        if isinstance(answer, Refusal):
            raise message.refused(answer)
        uplink, one.bytes_up = bytes(message.enclosed.get("uplink", b"")), message.size
        if sha256(uplink) != answer.uplink:
            raise UnusableError(Reason.SIGNATURE, "the part is not the one that was signed")
        if len(uplink) != numbers * word(self.terms).itemsize:
            text = f"a part of {len(uplink)} bytes, of {numbers} numbers"
            raise UnusableError(Reason.SUM_PART, text)
        fields = {"uplink": answer.uplink, "bytes": message.size}
        self.exchange.audit.write("received", silo=answer.silo, round=answer.number, **fields)
        part: Words = np.frombuffer(uplink, word(self.terms))
        return part


def _summed(arrival: Arrival, uplink: dict[str, Tensor], more: int) -> Arrival:
    """A silo's arrival with the mean as its uplink, after so many more bytes."""
    reply = replace(arrival.reply, uplink=uplink)
    return replace(arrival, reply=reply, bytes_up=arrival.bytes_up + more)
