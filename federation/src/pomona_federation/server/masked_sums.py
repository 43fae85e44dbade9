"""Secure aggregation at the server: the sum of a round from the silos' masked parts.

Silos train first and answer with a key instead of an uplink. Then the server settles once over
which silos the round is summed, those that have trained, and asks them for their masked parts: only
all of these together reveal anything. A silo that drops out before that is left out at no cost; one
that drops out after it is waited for, since a second sum without it would reveal its model once its
part comes late.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import Field
from torch import Tensor

from pomona.core.bounds import MAX_CLIENTS, ClientId, Number
from pomona.core.errors import listed
from pomona.core.fixed_point import Integers, integer_dtype
from pomona.core.settings import Settings
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.secure_sum import excess, mean, receiver_tensors
from pomona.methods.base import Downlink
from pomona_federation.json_store import read_json, write_json
from pomona_federation.messages.message_bodies import Refusal, SumRequest, Token
from pomona_federation.messages.message_bus import Message, untrusted
from pomona_federation.messages.tensor_bytes import Encoding, sha256
from pomona_federation.server.message_exchange import MessageExchange
from pomona_federation.server.outgoing_messages import OutgoingMessage
from pomona_federation.server.round_messages import AnswerReader, OutgoingTask
from pomona_federation.unused_uplinks import Reason, UnusableError, UnusedUplink

SUM = "sum.json"


class SettledSum(Settings):
    """The clients over which a round is summed, in ``sum.json``: silos mask for these alone."""

    run: Token
    number: Number
    places: tuple[ClientId, ...] = Field(max_length=MAX_CLIENTS)


@dataclass
class OutgoingRequest(OutgoingMessage):
    """One silo's request for its masked part; ``bytes_up``: of its answer."""

    body: SumRequest
    bytes_up: int = 0


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

    def aggregate(
        self,
        arrivals: Mapping[int, Arrival],
        tasks: Mapping[int, OutgoingTask],
        request: ClientRequest,
        downlink: Downlink,
    ) -> dict[int, Arrival]:
        """The arrivals of a round whose silos have trained, each with the mean as its uplink.

        Empty without a sum; silos that are not in it are left out, but for faults of their own.

        Args:
            arrivals: verified answers by client id, without uplinks, in the order of arrival.
            tasks: that they answer, with the silos' keys.
            request: to the silos.
            downlink: what they received.
        """
        self.unused, number = {}, request.round.number
        ready = self._ready(number, arrivals, tasks)
        settled = self._settled(number)
        clients = self._settle(number, ready, settled)
        if not clients:
            for client, arrival in arrivals.items():
                if fault := arrival.reply.fault:
                    self._leave_out([tasks[client].silo], number, Reason.DIVERGED, fault)
            return {}
        requests, total = self._collect_parts(clients, tasks, request)
        if total is None:
            self._unsettle(settled, requests)
            return {}
        silos = [tasks[i].silo for i in clients]
        if reason := excess(total, len(clients), self.terms):
            self._leave_out(silos, number, Reason.SUM_RANGE, reason)
            return {}
        self.exchange.audit.write("sum", round=number, silos=silos)
        uplink = self._mean(total, clients[0], request, downlink)
        unsummed = {i: a for i, a in arrivals.items() if a.reply.fault or a.unread}
        return unsummed | {
            i: _with_mean(arrivals[i], uplink, requests[i].bytes_up) for i in clients
        }

    def _ready(
        self, number: int, arrivals: Mapping[int, Arrival], tasks: Mapping[int, OutgoingTask]
    ) -> tuple[int, ...]:
        """The clients that have trained, without those that repeat the key of an earlier
        arrival: all other silos would refuse the sum.
        """
        silos: dict[str, str] = {}
        ready = []
        for client in arrivals:
            silo, mask = tasks[client].silo, tasks[client].mask
            if not mask:
                continue
            if (earlier := silos.setdefault(mask.key, silo)) == silo:
                ready.append(client)
                continue
            self._leave_out([silo], number, Reason.SUM_KEY, f"the same key as {earlier}")
        return tuple(sorted(ready))

    def _leave_out(
        self, silos: Iterable[str], number: int, reason: Reason, detail: str = ""
    ) -> None:
        self.unused |= {
            silo: UnusedUplink(silo=silo, round=number, reason=reason, detail=detail)
            for silo in silos
        }

    def _mean(
        self, total: Integers, client: int, request: ClientRequest, downlink: Downlink
    ) -> dict[str, Tensor]:
        """The mean uplink from the sum of a round, by what one of its silos received."""
        received = receiver_tensors(downlink, request.ids.index(client))
        received = {name: self.encoding.narrow(row).to(row.dtype) for name, row in received.items()}
        return mean(total, received, request.expects, self.terms)

    @property
    def _path(self) -> Path:
        return self.exchange.registry.path.with_name(SUM)

    def _settled(self, number: int) -> SettledSum | None:
        """The sum that was settled for this round before, if any."""
        settled = read_json(SettledSum, self._path, remedy="remove it: silos refuse a second sum")
        this_round = (self.exchange.run, number)
        return settled if settled and (settled.run, settled.number) == this_round else None

    def _unsettle(
        self, settled: SettledSum | None, requests: Mapping[int, OutgoingRequest]
    ) -> None:
        """Let a sum that all its silos refused be settled again, over others; not one ``settled``
        before, of which one may have masked its part already.
        """
        if not settled and {o.reason for o in requests.values()} == {Reason.REFUSED_TASK}:
            self._path.unlink(missing_ok=True)

    def _settle(
        self, number: int, ready: tuple[int, ...], settled: SettledSum | None
    ) -> tuple[int, ...]:
        """The clients over which a round is summed, durably before any silo is asked; empty if too
        few are ready, or not all of those that were settled before.
        """
        if settled:
            return self._settled_again(settled, ready)
        if len(ready) < self.terms.minimum:
            names = [e.name for e in self.exchange.registry.entries]
            shortage = f"a sum needs {self.terms.minimum} silos, {len(ready)} have trained"
            self._leave_out([names[i] for i in ready], number, Reason.SUM_SHORT, shortage)
            return ()
        write_json(self._path, SettledSum(run=self.exchange.run, number=number, places=ready))
        return ready

    def _settled_again(self, settled: SettledSum, ready: tuple[int, ...]) -> tuple[int, ...]:
        """The clients of a sum that was settled before; empty if not all of them are ready."""
        names = [e.name for e in self.exchange.registry.entries]
        dropped = [names[client] for client in settled.places if client not in ready]
        self._leave_out(dropped, settled.number, Reason.SUM_MISSING)
        detail = f"without {listed(dropped)}"
        for client in ready:
            if client not in settled.places:
                self._leave_out([names[client]], settled.number, Reason.SUM_LATE)
            elif dropped:
                self._leave_out([names[client]], settled.number, Reason.SUM_SHORT, detail)
        return () if dropped else settled.places

    def _collect_parts(
        self, clients: Sequence[int], tasks: Mapping[int, OutgoingTask], request: ClientRequest
    ) -> tuple[Mapping[int, OutgoingRequest], Integers | None]:
        """Ask for all parts; returns the requests, and the sum modulo 2^b: None if one is
        missing.
        """
        keys = {i: mask for i in clients if (mask := tasks[i].mask)}
        number, numbers = request.round.number, sum(t.numel() for t in request.expects.values())
        total, added = np.zeros(numbers, integer_dtype(self.terms)), set[int]()
        requests = {
            i: OutgoingRequest(tasks[i].silo, SumRequest(task=tasks[i].body, keys=keys))
            for i in clients
        }

        def on_answer(client: int, message: Message) -> None:
            outgoing = requests[client]
            try:
                with untrusted(Reason.SUM_PART):
                    masked = self._verified_part(client, outgoing, message, numbers)
            except UnusableError as fault:
                outgoing.fail(fault.reason, str(fault))
                return
            outgoing.finished = outgoing.answered = True
            if client not in added:
                added.add(client)
                np.add(total, masked, out=total)

        self.exchange.send_all(f"sum of round {number}", requests, on_answer)
        self.unused |= {o.silo: o.unused(number) for i, o in requests.items() if i not in added}
        if dropped := [requests[i].silo for i in clients if i not in added]:
            short_silos, detail = [requests[i].silo for i in added], f"without {listed(dropped)}"
            self._leave_out(short_silos, number, Reason.SUM_SHORT, detail)
        return requests, total if added == set(clients) else None

    def _verified_part(
        self, client: int, request: OutgoingRequest, message: Message, numbers: int
    ) -> Integers:
        """A verified part. Raises UnusableError, also for a refusal."""
        answer = self.reader.verified(client, request, message)
        if isinstance(answer, Refusal):
            raise message.refused(answer)
        uplink, request.bytes_up = bytes(message.enclosed.get("uplink", b"")), message.size
        if sha256(uplink) != answer.uplink:
            raise UnusableError(Reason.SIGNATURE, "the part is not the one that was signed")
        if len(uplink) != numbers * integer_dtype(self.terms).itemsize:
            text = f"a part of {len(uplink)} bytes, of {numbers} numbers"
            raise UnusableError(Reason.SUM_PART, text)
        fields = {"uplink": answer.uplink, "bytes": message.size}
        self.exchange.audit.write("received", silo=answer.silo, round=answer.number, **fields)
        masked: Integers = np.frombuffer(uplink, integer_dtype(self.terms))
        return masked


def _with_mean(arrival: Arrival, uplink: dict[str, Tensor], extra_bytes: int) -> Arrival:
    """A silo's arrival with the mean as its uplink, after so many more bytes."""
    reply = replace(arrival.reply, uplink=uplink)
    return replace(arrival, reply=reply, bytes_up=arrival.bytes_up + extra_bytes)
