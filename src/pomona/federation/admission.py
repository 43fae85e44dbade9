"""Admission: every uplink is checked before use; a refused client counts as absent.

Checks: run and round; that the client was asked, is not in quarantine and has not replied yet; its
number of samples, as registered; names, shapes and dtypes, exactly; that numbers are finite and
integers are client ids; the method's own check; and each float tensor's L2 norm
(``federation.norm_bounds``), which may be at most ``FACTOR`` times the median of those accepted
before. The norm is a model's own, not its distance from an earlier one: that distance grows with a
client's data and with every missed round, and shrinks towards the optimum, so that the same bound
on it would refuse honest clients. So it is with counts, losses and changes that some methods send
in addition to models: for them the factor is ``FACTOR_AUXILIARY``. Admission rejects numbers far
outside the usual range; it does not protect against a client that poisons within it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from torch import Tensor

from pomona.federation.exchange import Arrival
from pomona.federation.norm_bounds import Bound, Measure, bounds, norms
from pomona.methods.base import Downlink
from pomona.storage.safetensors_stream import digest, quoted
from pomona.storage.tensor_validation import mismatch, non_finite, not_plain, strangers

WINDOW = 1000
"""Accepted norms stored for each tensor."""
STRIKES = 3
"""Consecutive refused uplinks after which a client is quarantined."""
VALUES_REMEDY = "lower lr, or look at the data"
FORM_REMEDY = "what the method's client sends and its server expects must agree"
Check = Literal[
    "diverged",
    "wrong-round",
    "not-asked",
    "quarantine",
    "samples",
    "unreadable",
    "form",
    "values",
    "repeated",
    "norm",
]
"""Name of a check that an uplink can fail; "diverged" is the client's own."""


@dataclass(frozen=True)
class Expected:
    """Uplinks expected in a round.

    Attributes:
        sizes: the clients asked, with the number of training samples that each registered.
        spec: example tensors by name, on any device, e.g. "meta"; names, shapes and dtypes count.
        members: number of clients in the federation; integers in an uplink are their ids.
        flaw: the method's own check of a well-formed uplink, as ``Server.invalid``.
        auxiliary: names of tensors that are not models, as ``Exchange.non_model_entries``.
        downlink: what the server sent to these clients.
        initial: the run's initial model.
    """

    run: str
    round: int
    sizes: Mapping[int, int]
    spec: Mapping[str, Tensor]
    members: int
    flaw: Callable[[dict[str, Tensor]], str | None] = lambda _: None
    auxiliary: Collection[str] = ()
    downlink: Downlink = field(default_factory=dict)
    initial: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class History:
    """State kept between rounds: consecutive refusals per client, accepted norms per tensor, oldest
    first, and those of each client's last accepted uplink.
    """

    strikes: Mapping[int, int] = field(default_factory=dict)
    norms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    latest: Mapping[int, Mapping[str, float]] = field(default_factory=dict)

    def quarantined(self) -> frozenset[int]:
        """Return the clients that are excluded from later rounds."""
        return frozenset(client for client, count in self.strikes.items() if count >= STRIKES)

    def as_json(self) -> dict[str, Any]:
        """Return the history as JSON for a checkpoint's note."""
        return {
            "strikes": {str(client): count for client, count in self.strikes.items()},
            "norms": {name: list(norms) for name, norms in self.norms.items()},
            "latest": {str(client): dict(norms) for client, norms in self.latest.items()},
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "History":
        """Restore a history, the inverse of ``as_json``."""
        return cls(
            {int(client): count for client, count in body["strikes"].items()},
            {name: tuple(norms) for name, norms in body["norms"].items()},
            {int(client): norms for client, norms in body.get("latest", {}).items()},
        )


class Flaw(NamedTuple):
    """A failed check: its name, the reason, what to do, and whether it is a strike."""

    check: Check
    reason: str
    remedy: str = ""
    struck: bool = True


@dataclass(frozen=True)
class Rejection:
    """One uplink that is not used.

    Attributes:
        check: that it has failed.
        reason: the reason, without client and round.
        struck: whether it counts towards its client's quarantine.
        line: the whole message, for display.
        remedy: what to do if a run ends for it; empty if there is nothing beyond the reason.
    """

    client: int
    check: Check
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
        bounds: the largest allowed norm of this round by float tensor; ``UNBOUNDED`` where there is
            none.
    """

    accepted: tuple[Arrival, ...]
    rejected: tuple[Rejection, ...]
    history: History
    norms: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    bounds: Mapping[str, float] = field(default_factory=dict)


def admit(arrivals: Sequence[Arrival], expected: Expected, history: History) -> Admission:
    """Check a round's uplinks together, so that the order of arrival only decides which of two
    copies is first.

    A stale, unrequested or repeated uplink is ignored; an invalid one is also a strike, unless
    another one from the same client was accepted. Acceptance resets a client's strikes. A client
    that reports a fault is rejected without a strike; these come first.
    """
    faults = _faults(arrivals)
    well_formed, rejected = _well_formed(arrivals, expected, history)
    measured = {client: norms(well_formed[client].reply.uplink) for client in sorted(well_formed)}
    measure = Measure(expected.downlink, expected.initial, max(expected.sizes.values(), default=1))
    limits = bounds(history.norms, measured, expected.spec, expected.auxiliary, measure)
    excess = {client: _excess(client_norms, limits) for client, client_norms in measured.items()}
    rejected += [
        _rejection(
            client,
            expected.round,
            Flaw("norm", reason, VALUES_REMEDY, _exceeds_bound(measured[client], limits)),
        )
        for client, reason in excess.items()
        if reason
    ]
    accepted = {client: well_formed[client] for client, reason in excess.items() if not reason}
    rejected.sort(key=lambda r: (r.client, r.reason))
    updated = _history_after(history, measured, accepted.keys(), rejected, limits)
    max_norms = {name: bound.max_norm for name, bound in limits.items()}
    return Admission(tuple(accepted.values()), (*faults, *rejected), updated, measured, max_norms)


def _faults(arrivals: Sequence[Arrival]) -> list[Rejection]:
    """Return the clients that report a fault, in their order."""
    failed = sorted((a.reply for a in arrivals if a.reply.fault), key=lambda reply: reply.client)
    return [
        Rejection(reply.client, "diverged", reply.fault, struck=False, line=reply.fault)
        for reply in failed
    ]


def _well_formed(
    arrivals: Sequence[Arrival], expected: Expected, history: History
) -> tuple[dict[int, Arrival], list[Rejection]]:
    """Return each client's first well-formed uplink, in order of arrival, and the others with the
    reason.
    """
    well_formed: dict[int, Arrival] = {}
    rejected: list[Rejection] = []
    for arrival in [a for a in arrivals if not a.reply.fault]:
        client = arrival.reply.client
        if flaw := _flaw(arrival, expected, history, well_formed.get(client)):
            rejected.append(_rejection(client, expected.round, flaw))
        else:
            well_formed[client] = arrival
    return well_formed, rejected


def _flaw(
    arrival: Arrival, expected: Expected, history: History, earlier: Arrival | None
) -> Flaw | None:
    """Return the check that an arrival fails; ``earlier``: its client's earlier well_formed one."""
    uplink = arrival.reply.uplink
    if stale := _uninvited(arrival, expected, history):
        return stale
    if miscounted := _miscounted(arrival, expected):
        return Flaw("samples", miscounted)
    if arrival.unread:
        return Flaw("unreadable", str(arrival.unread))
    if malformed := (
        not_plain(uplink) or mismatch(uplink, expected.spec) or strangers(uplink, expected.members)
    ):
        return Flaw("form", malformed, FORM_REMEDY)
    if invalid := non_finite(uplink) or expected.flaw(uplink):
        return Flaw("values", invalid, VALUES_REMEDY)
    if earlier:
        return Flaw("repeated", _repeated(earlier.reply.uplink, uplink), struck=False)
    return None


def _excess(norms: Mapping[str, float], limits: Mapping[str, Bound]) -> str:
    """Describe the tensors whose norm exceeds its bound; empty if there are none."""
    return "; ".join(
        f"tensor {quoted(name)} {excess}"
        for name, bound in limits.items()
        if (excess := bound.excess(norms[name]))
    )


def _exceeds_bound(norms: Mapping[str, float], limits: Mapping[str, Bound]) -> bool:
    """Return whether a client exceeds a bound, and not only contradicts another client."""
    return any(not norms[name] <= bound.max_norm for name, bound in limits.items())


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
    recent = {
        name: (*history.norms.get(name, ()), *(norms[c][name] for c in accepted))[-WINDOW:]
        for name in names
    }
    latest = {**history.latest, **{c: norms[c] for c in accepted}}
    return History(strikes, recent, latest)


def _uninvited(arrival: Arrival, expected: Expected, history: History) -> Flaw | None:
    if arrival.run != expected.run:
        text = f"it is for run {quoted(str(arrival.run))}, this is {expected.run}"
        return Flaw("wrong-round", text, struck=False)
    if arrival.round != expected.round:
        return Flaw("wrong-round", f"it is for round {arrival.round}", struck=False)
    if arrival.reply.client not in expected.sizes:
        return Flaw("not-asked", "this client was not asked", struck=False)
    if arrival.reply.client in history.quarantined():
        text = f"in quarantine after {STRIKES} refused uplinks in a row"
        return Flaw("quarantine", text, struck=False)
    return None


def _miscounted(arrival: Arrival, expected: Expected) -> str:
    size = expected.sizes[arrival.reply.client]
    if type(arrival.samples) is int and arrival.samples == size:
        return ""
    return f"it counts {quoted(str(arrival.samples))} samples, but {size} are registered"


def _repeated(earlier: Mapping[str, Tensor], later: Mapping[str, Tensor]) -> str:
    earlier_digest, later_digest = digest(earlier), digest(later)
    if earlier_digest == later_digest:
        return "the same uplink again"
    return f"a second uplink, {later_digest}, after {earlier_digest}, which counts"


def _rejection(client: int, round_: int, flaw: Flaw) -> Rejection:
    line = f"client {client}, round {round_}: {flaw.reason}"
    return Rejection(client, flaw.check, flaw.reason, flaw.struck, line, flaw.remedy)
