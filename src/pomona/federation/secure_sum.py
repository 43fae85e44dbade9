"""Secure aggregation without its masks: what a client gives to the sum, and what the server takes
from it.

A simulation adds the clients' integers in the open; in a federation silos mask them first
(``pomona_federation``). The numbers are the same to the bit, since sums of integers are exact.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np
import torch
from torch import Tensor

from pomona.config import Config
from pomona.core import fixed_point
from pomona.core.errors import ConfigError
from pomona.core.round import Ids, Roster
from pomona.core.training_settings import SecureAggregation
from pomona.federation.exchange import Arrival, ClientRequest
from pomona.federation.noise_in_sums import coarse, noise_adds_up, require_honest
from pomona.federation.round_plan import cohort_size
from pomona.methods import METHODS
from pomona.methods.base import Downlink
from pomona.storage.tensor_validation import non_finite

TOLERANCE = 1e-3
"""By how much, relative to the largest norm, roundings may lengthen a mean of clipped changes."""


def require_sums(config: Config, clients: int | None = None) -> None:
    """Raise ConfigError for secure aggregation where a sum of models is not enough, or where there
    are too few clients for one, if their number is known; and for ``privacy.honest`` where sums do
    not have the noise of several clients.
    """
    require_honest(config)
    if not (terms := config.secure_aggregation):
        return
    if clients is not None:
        cohort = cohort_size(config, config.membership.fewest(clients, config.rounds))
        if terms.minimum > cohort:
            raise ConfigError(
                f"secure_aggregation.minimum = {terms.minimum}, but a round may have {cohort} "
                "clients; lower it, raise participation, or take more clients"
                + (", or change membership" if config.membership.changes else "")
            )
    if not config.method.method().server.sums:
        methods = ", ".join(n for n, settings in METHODS.items() if settings().method().server.sums)
        raise ConfigError(
            f"secure_aggregation: the server of {config.method.name} needs each client's model, "
            f"but would see only their mean; use one of {methods}, or remove secure_aggregation"
        )
    if config.buffers == "average":
        raise ConfigError(
            "secure_aggregation sums models, not BatchNorm statistics; set buffers = 'local'"
        )


def receiver_tensors(downlink: Downlink, k: int) -> dict[str, Tensor]:
    """Return what receiver ``k`` of a downlink gets, by name."""
    return {
        name: rows.bank[rows.index[k]] for name, rows in downlink.items() if rows.index.dim() == 1
    }


def change(uplink: Mapping[str, Tensor], received: Mapping[str, Tensor]) -> fixed_point.Numbers:
    """Return a client's change (d,) from what it received, the tensors of its uplink in the order
    of their names.
    """
    return np.concatenate(
        [
            _flat(uplink[name]) - _flat(_start(received, name, uplink[name]))
            for name in sorted(uplink)
        ]
    )


def limited(delta: fixed_point.Numbers, config: Config) -> tuple[fixed_point.Numbers, float]:
    """Return a change (d,) as it is summed, clipped unless its noise counts for others, and its
    norm before.
    """
    assert config.secure_aggregation
    max_norm = inf if noise_adds_up(config) else config.secure_aggregation.max_norm
    return fixed_point.clipped(delta, max_norm)


def mean(
    total: fixed_point.Integers,
    received: Mapping[str, Tensor],
    spec: Mapping[str, Tensor],
    terms: SecureAggregation,
) -> dict[str, Tensor]:
    """Return the mean uplink, of the form of ``spec``, from the sum of the clients' integers."""
    delta, uplink, offset = fixed_point.decoded(total, terms), dict[str, Tensor](), 0
    for name in sorted(spec):
        example = spec[name]
        start = _flat(_start(received, name, example)).astype(np.float64)
        row = (start + delta[offset : offset + example.numel()]).astype(np.float32)
        uplink[name] = torch.from_numpy(row).view(example.shape).to(example.dtype)
        offset += example.numel()
    return uplink


def excess(total: fixed_point.Integers, clients: int, terms: SecureAggregation) -> str:
    """Return why a sum over so many clients cannot be one of clipped changes; "" if it can."""
    norm = float(np.linalg.norm(fixed_point.decoded(total, terms)))
    limit = terms.max_norm * (1 + TOLERANCE) + fixed_point.error(terms, clients) * len(total) ** 0.5
    return (
        f"the sum has norm {norm:.3g}, clipped changes have at most {terms.max_norm:g}: a client "
        "did not clip (with privacy.honest none does; raise max_norm), or did not mask as the "
        "others did"
        if norm > limit
        else ""
    )


def summed(
    arrivals: Sequence[Arrival], visit: ClientRequest, downlink: Downlink, config: Config
) -> tuple[list[Arrival], list[float]]:
    """Return a simulation's arrivals as a server sees them, every usable uplink being the mean of
    all, and the norms of the changes that were clipped.

    A client without a finite uplink, or with numbers too coarse, takes no part in the sum.
    """
    terms = config.secure_aggregation
    assert terms
    arrivals = [_checked(a, visit, downlink, config) for a in arrivals]
    sound = [a for a in arrivals if a.reply.uplink and not non_finite(a.reply.uplink)]
    if not sound:
        return list(arrivals), []
    ids = tuple(a.reply.client for a in sound)
    received = receiver_tensors(downlink, visit.ids.index(ids[0]))
    spec = sound[0].reply.uplink
    total, norms = _total(sound, received, weighed(visit.roster, ids), config)
    if noise_adds_up(config):
        norms = []
        if reason := excess(total, len(ids), terms):
            return [_faulty(a, reason) for a in arrivals], norms
    row = {k: t.to(spec[k].device) for k, t in mean(total, received, spec, terms).items()}
    results = [
        replace(a, reply=replace(a.reply, uplink=row)) if a.reply.client in ids else a
        for a in arrivals
    ]
    return results, norms


def _total(
    arrivals: Sequence[Arrival],
    received: Mapping[str, Tensor],
    weights: Mapping[int, float],
    config: Config,
) -> tuple[fixed_point.Integers, list[float]]:
    """Return the sum of weighted changes, and the norms of those that were clipped."""
    terms = config.secure_aggregation
    assert terms
    size = sum(t.numel() for t in arrivals[0].reply.uplink.values())
    total, norms = np.zeros(size, fixed_point.integer_dtype(terms)), []
    for arrival in arrivals:
        delta, norm = limited(change(arrival.reply.uplink, received), config)
        total += fixed_point.encoded(delta, weights[arrival.reply.client], terms)
        norms.append(norm)
    return total, [norm for norm in norms if norm > terms.max_norm]


def _checked(a: Arrival, visit: ClientRequest, downlink: Downlink, config: Config) -> Arrival:
    if not a.reply.uplink:
        return a
    client = a.reply.client
    received = receiver_tensors(downlink, visit.ids.index(client))
    samples = visit.roster.sizes[client]
    reason = coarse(received, samples, visit.roster, visit.round.lr, config)
    return _faulty(a, reason) if reason else a


def _faulty(a: Arrival, reason: str) -> Arrival:
    return replace(a, reply=replace(a.reply, uplink={}, fault=a.reply.fault or reason))


def weighed(roster: Roster, ids: Ids) -> dict[int, float]:
    """Return the weights of a sum over these clients, ascending ids, as every one of them computes
    it.
    """
    return dict(zip(ids, roster.weights(ids).tolist(), strict=True))


def _start(received: Mapping[str, Tensor], name: str, example: Tensor) -> Tensor:
    """Return the tensor that a client changed; zeros for one that it did not receive."""
    tensor = received.get(name)
    if tensor is not None and tensor.shape == example.shape:
        return tensor
    return torch.zeros(example.shape)


def _flat(tensor: Tensor) -> fixed_point.Numbers:
    numbers: fixed_point.Numbers = tensor.detach().cpu().to(torch.float32).reshape(-1).numpy()
    return numbers
