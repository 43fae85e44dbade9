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
from pomona.core.errors import ConfigError
from pomona.core.fixed_point import Numbers, Words, clipped, decoded, encoded, error, word
from pomona.core.round import Roster
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
        asked = cohort_size(config, config.membership.fewest(clients, config.rounds))
        if terms.minimum > asked:
            raise ConfigError(
                f"secure_aggregation.minimum = {terms.minimum}, but a round may have {asked} "
                "clients; lower it, raise participation, or take more clients"
                + (", or change membership" if config.membership.changes else "")
            )
    if not config.method.method().server.sums:
        able = ", ".join(n for n, kind in METHODS.items() if kind().method().server.sums)
        raise ConfigError(
            f"secure_aggregation: the server of {config.method.name} works on the clients' single "
            f"models, of which it would see only the mean; take one of {able}, or leave "
            "secure_aggregation out"
        )
    if config.buffers == "average":
        raise ConfigError(
            "secure_aggregation sums models, not BatchNorm statistics; set buffers = 'local'"
        )


def received(down: Downlink, k: int) -> dict[str, Tensor]:
    """Return what receiver ``k`` of a downlink gets, by name."""
    return {name: rows.bank[rows.index[k]] for name, rows in down.items() if rows.index.dim() == 1}


def change(
    uplink: Mapping[str, Tensor], came: Mapping[str, Tensor], config: Config
) -> tuple[Numbers, float]:
    """Return a client's change (d,) from what it received, clipped unless its noise counts for
    others, and its norm before clipping.

    The tensors of its uplink come in the order of their names.
    """
    assert config.secure_aggregation
    moved = np.concatenate(
        [_flat(uplink[name]) - _flat(_start(came, name, uplink[name])) for name in sorted(uplink)]
    )
    return clipped(moved, inf if noise_adds_up(config) else config.secure_aggregation.max_norm)


def mean(
    total: Words, came: Mapping[str, Tensor], spec: Mapping[str, Tensor], terms: SecureAggregation
) -> dict[str, Tensor]:
    """Return the mean uplink, of the form of ``spec``, from the sum of the clients' integers."""
    moved, made, at = decoded(total, terms), dict[str, Tensor](), 0
    for name in sorted(spec):
        like = spec[name]
        before = _flat(_start(came, name, like)).astype(np.float64)
        row = (before + moved[at : at + like.numel()]).astype(np.float32)
        made[name] = torch.from_numpy(row).view(like.shape).to(like.dtype)
        at += like.numel()
    return made


def excess(total: Words, clients: int, terms: SecureAggregation) -> str:
    """Return why a sum over so many clients cannot be one of clipped changes; "" if it can."""
    norm = float(np.linalg.norm(decoded(total, terms)))
    most = terms.max_norm * (1 + TOLERANCE) + error(terms, clients) * len(total) ** 0.5
    return (
        f"the sum has norm {norm:.3g}, clipped changes have at most {terms.max_norm:g}: a client "
        "did not clip (with privacy.honest none does; raise max_norm), or did not mask as the "
        "others did"
        if norm > most
        else ""
    )


def summed(
    arrivals: Sequence[Arrival], visit: ClientRequest, down: Downlink, config: Config
) -> tuple[list[Arrival], list[float]]:
    """Return a simulation's arrivals as a server sees them, every usable uplink being the mean of
    all, and the norms of the changes that were clipped.

    A client without a finite uplink, or with numbers too coarse, takes no part in the sum.
    """
    terms = config.secure_aggregation
    assert terms
    arrivals = [_checked(a, visit, down, config) for a in arrivals]
    sound = [a for a in arrivals if _usable(a)]
    if not sound:
        return list(arrivals), []
    ids = tuple(a.reply.client for a in sound)
    came = received(down, visit.ids.index(ids[0]))
    weights = weighed(visit.roster, ids)
    total = np.zeros(sum(t.numel() for t in sound[0].reply.uplink.values()), word(terms))
    norms, spec = [], sound[0].reply.uplink
    for arrival in sound:
        moved, norm = change(arrival.reply.uplink, came, config)
        total += encoded(moved, weights[arrival.reply.client], terms)
        norms.append(norm)
    if noise_adds_up(config) and (why := excess(total, len(ids), terms)):
        return [_faulty(a, why) for a in arrivals], []
    row = {k: t.to(spec[k].device) for k, t in mean(total, came, spec, terms).items()}
    seen = [
        replace(a, reply=replace(a.reply, uplink=row)) if a.reply.client in ids else a
        for a in arrivals
    ]
    cut = [] if noise_adds_up(config) else [norm for norm in norms if norm > terms.max_norm]
    return seen, cut


def _checked(a: Arrival, visit: ClientRequest, down: Downlink, config: Config) -> Arrival:
    if not a.reply.uplink:
        return a
    client = a.reply.client
    came, samples = received(down, visit.ids.index(client)), visit.roster.sizes[client]
    why = coarse(came, samples, visit.roster, visit.round.lr, config)
    return _faulty(a, why) if why else a


def _faulty(a: Arrival, why: str) -> Arrival:
    return replace(a, reply=replace(a.reply, uplink={}, fault=a.reply.fault or why))


def _usable(arrival: Arrival) -> bool:
    return bool(arrival.reply.uplink) and not non_finite(arrival.reply.uplink)


def weighed(roster: Roster, ids: tuple[int, ...]) -> dict[int, float]:
    """Return the weights of a sum over these clients, ascending ids, as every one of them computes
    it.
    """
    return dict(zip(ids, roster.weights(ids).tolist(), strict=True))


def _start(came: Mapping[str, Tensor], name: str, like: Tensor) -> Tensor:
    """Return the tensor that a client changed; zeros for one that it did not receive."""
    found = came.get(name)
    return found if found is not None and found.shape == like.shape else torch.zeros(like.shape)


def _flat(tensor: Tensor) -> Numbers:
    numbers: Numbers = tensor.detach().cpu().to(torch.float32).reshape(-1).numpy()
    return numbers
