"""Admission: every uplink is checked before use; a refused client counts as absent.

Checks: run and round; that the client was asked, is not in quarantine and has not replied yet; its
number of samples, as registered; names, shapes and dtypes, exactly; that numbers are finite and
integers are client ids; the method's own check; and each float tensor's L2 norm, which may be at
most ``FACTOR`` times the median of those accepted before. The norm is a model's own, not its
distance from an earlier one: that distance grows with a client's data and with every missed round,
and shrinks towards the optimum, so that the same bound on it would refuse honest clients. So it is
with counts, losses and changes that some methods send beside models: for them the factor is
``FACTOR_BESIDE``. Admission rejects numbers far outside the usual range; it does not protect
against a client that poisons within it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, isfinite
from statistics import median
from typing import Any

import torch
from torch import Tensor

from pomona.federation.exchange import Arrival
from pomona.storage.mapped_tensor import slices
from pomona.storage.safetensors_stream import digest, shown
from pomona.storage.tensor_validation import mismatch, non_finite, not_plain, strangers

UNBOUNDED = torch.finfo(torch.float64).max  # as a bound of norms, it excludes infinities
FACTOR = 100.0
"""Maximum ratio of a model's norm to the median of those accepted before."""
FACTOR_BESIDE = 1e6
"""The same for what is sent beside a model. An honest client may have a thousand times the samples
of the others, or the loss of one who joins where the others have none left.
"""
ENOUGH = 5
"""Number of norms needed for a median. Until as many were accepted, the round's own uplinks count
as well, and while they are still too few, norms are only checked to be finite.
"""
WINDOW = 1000
"""Accepted norms stored for each tensor."""
STRIKES = 3
"""Consecutive refused uplinks after which a client is quarantined."""
OF_VALUES = "lower lr, or look at the data"
OF_FORM = "what the method's client sends and its server expects must agree"


@dataclass(frozen=True)
class Expected:
    """Uplinks expected in a round.

    Attributes:
        sizes: the clients asked, with the number of training samples that each registered.
        spec: example tensors by name, on any device, e.g. "meta"; names, shapes and dtypes count.
        members: number of clients in the federation; integers in an uplink are their ids.
        flaw: the method's own check of a well-formed uplink, as ``Server.flaw``.
        beside: names of tensors that are not models, as ``Exchange.beside``.
    """

    run: str
    round: int
    sizes: Mapping[int, int]
    spec: Mapping[str, Tensor]
    members: int
    flaw: Callable[[dict[str, Tensor]], str | None] = lambda _: None
    beside: Collection[str] = ()


@dataclass(frozen=True)
class History:
    """State kept between rounds: consecutive refusals per client, accepted norms per tensor, oldest
    first.
    """

    strikes: Mapping[int, int] = field(default_factory=dict)
    norms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def quarantined(self) -> frozenset[int]:
        """Return the clients that are excluded from later rounds."""
        return frozenset(client for client, count in self.strikes.items() if count >= STRIKES)

    def as_json(self) -> dict[str, Any]:
        """Return the history as JSON for a checkpoint's note."""
        return {
            "strikes": {str(client): count for client, count in self.strikes.items()},
            "norms": {name: list(norms) for name, norms in self.norms.items()},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "History":
        """Restore a history, the inverse of ``as_json``."""
        return cls(
            {int(client): count for client, count in body["strikes"].items()},
            {name: tuple(norms) for name, norms in body["norms"].items()},
        )


@dataclass(frozen=True)
class Rejection:
    """One uplink that is not used.

    Attributes:
        reason: the reason, without client and round.
        struck: whether it counts towards its client's quarantine.
        line: the whole message, for display.
        remedy: what to do if a run ends for it; empty if there is nothing beyond the reason.
    """

    client: int
    reason: str
    struck: bool
    line: str
    remedy: str = ""


@dataclass(frozen=True)
class Admission:
    """Accepted uplinks in the order of clients, rejections, and the history for the next round.

    Attributes:
        norms: L2 norms by client and float tensor, for well-formed uplinks; infinite after an
            overflow.
        bounds: the largest allowed norm of this round by float tensor; the largest float while
            there are too few norms.
    """

    accepted: tuple[Arrival, ...]
    rejected: tuple[Rejection, ...]
    history: History
    norms: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)


def admit(
    arrivals: Sequence[Arrival],
    expected: Expected,
    history: History,
) -> Admission:
    """Check a round's uplinks together, so that the order of arrival only decides which of two
    copies is first.

    A stale, unrequested or repeated uplink is ignored; an invalid one is also a strike, unless
    another one from the same client was accepted. Acceptance resets a client's strikes. A client
    that reports a fault is rejected without a strike; these come first.
    """
    faults = _faults(arrivals)
    sound, rejected = _sound(arrivals, expected, history)
    norms = {client: _norms(sound[client].reply.uplink) for client in sorted(sound)}
    bounds = {
        name: _bound(
            history.norms.get(name, ()),
            [n[name] for n in norms.values()],
            FACTOR_BESIDE if name in expected.beside else FACTOR,
        )
        for name, example in expected.spec.items()
        if example.is_floating_point()
    }
    huge = {client: line for client, own in norms.items() if (line := _excess(own, bounds))}
    rejected += [
        _rejection(client, expected.round, line, struck=True, remedy=OF_VALUES)
        for client, line in huge.items()
    ]
    accepted = {client: sound[client] for client in norms if client not in huge}
    rejected.sort(key=lambda r: (r.client, r.reason))
    after = _history_after(history, norms, accepted.keys(), rejected, bounds)
    return Admission(tuple(accepted.values()), (*faults, *rejected), after, norms, bounds)


def _faults(arrivals: Sequence[Arrival]) -> list[Rejection]:
    """Return the clients that report a fault, in their order."""
    failed = sorted((a.reply for a in arrivals if a.reply.fault), key=lambda reply: reply.client)
    return [
        Rejection(reply.client, reply.fault, struck=False, line=reply.fault) for reply in failed
    ]


def _sound(
    arrivals: Sequence[Arrival], expected: Expected, history: History
) -> tuple[dict[int, Arrival], list[Rejection]]:
    """Return each client's first well-formed uplink, in order of arrival, and the others with the
    reason.
    """
    sound: dict[int, Arrival] = {}
    rejected: list[Rejection] = []
    for arrival in [a for a in arrivals if not a.reply.fault]:
        client = arrival.reply.client
        if ignored := _uninvited(arrival, expected, history):
            rejected.append(_rejection(client, expected.round, ignored, struck=False))
        elif wrong := _unregistered(arrival, expected):
            rejected.append(_rejection(client, expected.round, wrong, struck=True))
        elif wrong := _form_flaw(arrival.reply.uplink, expected):
            rejected.append(_rejection(client, expected.round, wrong, True, OF_FORM))
        elif wrong := non_finite(arrival.reply.uplink) or expected.flaw(arrival.reply.uplink):
            rejected.append(_rejection(client, expected.round, wrong, True, OF_VALUES))
        elif client in sound:
            again = _repeated(sound[client].reply.uplink, arrival.reply.uplink)
            rejected.append(_rejection(client, expected.round, again, struck=False))
        else:
            sound[client] = arrival
    return sound, rejected


def _excess(norms: Mapping[str, float], bounds: Mapping[str, float]) -> str:
    """Describe the tensors whose norm exceeds its bound, or is NaN; empty if there are none."""
    return "; ".join(
        f"tensor {shown(name)} has norm {norms[name]:.3g}, the bound is {bound:.3g}"
        for name, bound in bounds.items()
        if not norms[name] <= bound
    )


def _history_after(
    history: History,
    norms: Mapping[int, Mapping[str, float]],
    accepted: Collection[int],
    rejected: Sequence[Rejection],
    names: Iterable[str],
) -> History:
    """Return the history with a round's strikes, and the norms of its accepted uplinks."""
    struck = {r.client for r in rejected if r.struck} - {*accepted}
    strikes = {c: n for c, n in history.strikes.items() if c not in accepted}
    strikes |= {c: strikes.get(c, 0) + 1 for c in sorted(struck)}
    remembered = {
        name: (*history.norms.get(name, ()), *(norms[c][name] for c in accepted))[-WINDOW:]
        for name in names
    }
    return History(strikes, remembered)


def _uninvited(arrival: Arrival, expected: Expected, history: History) -> str | None:
    if arrival.run != expected.run:
        return f"it is for run {shown(str(arrival.run))}, this is {expected.run}"
    if arrival.round != expected.round:
        return f"it is for round {arrival.round}"
    if arrival.reply.client not in expected.sizes:
        return "this client was not asked"
    if arrival.reply.client in history.quarantined():
        return f"in quarantine after {STRIKES} refused uplinks in a row"
    return None


def _unregistered(arrival: Arrival, expected: Expected) -> str | None:
    size = expected.sizes[arrival.reply.client]
    if type(arrival.samples) is not int or arrival.samples != size:
        return f"it counts {shown(str(arrival.samples))} samples, registered are {size}"
    return str(arrival.unread) if arrival.unread else None


def _form_flaw(tensors: dict[str, Tensor], expected: Expected) -> str | None:
    return (
        not_plain(tensors)
        or mismatch(tensors, expected.spec)
        or strangers(tensors, expected.members)
    )


def _repeated(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> str:
    one, other = digest(first), digest(second)
    return (
        "the same uplink again"
        if one == other
        else f"a second uplink, {other}, after {one}, which counts"
    )


def _norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """Return L2 norms, summed in float64; infinite on overflow."""
    floats = {name: t for name, t in tensors.items() if t.is_floating_point()}
    return {
        name: hypot(
            *(float(torch.linalg.vector_norm(part, dtype=torch.float64)) for part in slices(t))
        )
        for name, t in floats.items()
    }


def _bound(history: Sequence[float], candidates: Sequence[float], factor: float) -> float:
    """Return the largest norm to accept; the largest float, which excludes infinities, if there are
    too few norms.
    """
    known = [*history] if len(history) >= ENOUGH else [*history, *candidates]
    middle = median(known) if len(known) >= ENOUGH else 0.0
    top = factor * middle
    return top if middle > 0 and isfinite(top) else UNBOUNDED


def _rejection(client: int, round_: int, reason: str, struck: bool, remedy: str = "") -> Rejection:
    return Rejection(client, reason, struck, f"client {client}, round {round_}: {reason}", remedy)
