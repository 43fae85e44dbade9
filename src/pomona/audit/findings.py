"""The numbers of an audit, computed from the observations of its runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pomona.audit import membership, roc
from pomona.audit.roc import Estimate, Mask, Pairs
from pomona.audit.shadows import Shadows
from pomona.metrics.nan_safe import Array

FEW_ALARMS = (0.01, 0.001)
ALL_CLIENTS = -1  # in place of a client


@dataclass(frozen=True)
class Membership:
    """One attack on one client's membership, by what one party receives.

    Attributes:
        party, attack: by name.
        client: its number; ``ALL_CLIENTS`` for all together.
        members, nonmembers: pairs of a record and a run with and without it.
        auc: how often a member scores above another record.
        hits: members found at each of ``FEW_ALARMS``, None where there are too few nonmembers.
        curve: false alarms and hits at each threshold.
    """

    party: str
    attack: str
    client: int
    members: int
    nonmembers: int
    auc: Estimate
    hits: tuple[float | None, ...]
    curve: tuple[Array, Array]


class Site(NamedTuple):
    """Records of run 0 whose client was guessed right, among those trained on or the others;
    ``chance``: by always naming the largest client.
    """

    party: str
    trained: bool
    right: Estimate
    records: int
    chance: float


@dataclass(frozen=True)
class Findings:
    """An audit's numbers.

    Attributes:
        runs: how many were attacked.
        ledger: each client's epsilon by its ledger, the largest of the runs; None without bound.
        proven: the epsilon that the attacks on each client prove at least, and under
            ``ALL_CLIENTS`` those on all together: at 95 % none of these is too high.
        budget: the epsilon that was asked for; None for the run's own settings.
        unseen: parties that receive no model.
    """

    runs: int
    membership: list[Membership]
    sites: list[Site]
    ledger: list[float | None]
    proven: Mapping[int, float]
    budget: float | None = None
    unseen: list[str] = field(default_factory=list)

    def by_party(self, party: str) -> list[Membership]:
        """Return the attacks of one party."""
        return [attack for attack in self.membership if attack.party == party]

    def main(self, party: str) -> Membership | None:
        """Return a party's main attack on all clients together, chosen before any numbers: one
        that compares runs.
        """
        pooled = [
            e for e in self.by_party(party) if e.client == ALL_CLIENTS and e.attack != "threshold"
        ]
        return pooled[0] if pooled else None

    def record(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {
            "runs": self.runs,
            "budget": self.budget,
            "ledger": self.ledger,
            "epsilon_at_least": {
                "all" if client == ALL_CLIENTS else str(client): epsilon
                for client, epsilon in self.proven.items()
            },
            "membership": [
                {
                    "party": e.party,
                    "attack": e.attack,
                    "client": None if e.client == ALL_CLIENTS else e.client,
                    "members": e.members,
                    "others": e.nonmembers,
                    "auc": e.auc,
                    "hits": dict(zip(map(str, FEW_ALARMS), e.hits, strict=True)),
                }
                for e in self.membership
            ],
            "sites": [s._asdict() for s in self.sites],
            "unseen": self.unseen,
        }


def assess(shadows: Shadows, delta: float, budget: float | None = None) -> Findings:
    """Attack all runs of an audit; ``delta`` as in the ledger, 0 without one."""
    scored = {party: _scored(shadows, party) for party in ("server", "peer")}
    attacks = (_attacks(shadows, party, scores) for party, scores in scored.items())
    sites = (_sites(shadows, party) for party in shadows.sites)
    every_score = chain.from_iterable(scores.values() for scores in scored.values())
    return Findings(
        len(shadows.member),
        [*chain.from_iterable(attacks)],
        [*chain.from_iterable(sites)],
        [float(e) if isfinite(e) else None for e in shadows.epsilon.max(0)],
        _proven(shadows, [*every_score], delta),
        budget,
        [party for party, scores in scored.items() if not scores],
    )


def _client_masks(shadows: Shadows) -> dict[int, Mask]:
    """Return the records (R,) of each client, and all of them under ``ALL_CLIENTS``."""
    client = shadows.records.client
    masks = {int(i): client == i for i in np.unique(client)}
    return masks | {ALL_CLIENTS: np.ones(len(client), bool)}


def _attacks(shadows: Shadows, party: str, scored: Mapping[str, Array]) -> Iterator[Membership]:
    for name, scores in scored.items():
        for client, mask in _client_masks(shadows).items():
            if figures := attack_figures(scores[:, mask], shadows.member[:, mask]):
                yield Membership(party, name, client, **figures)


def _proven(shadows: Shadows, attacks: list[Array], delta: float) -> dict[int, float]:
    """Return the epsilon that attacks (M, R) prove, by client: all together at 95 %, since each has
    its share of the 5 % (Bonferroni).
    """
    masks = _client_masks(shadows)
    trust = 1 - (1 - roc.TRUST) / len(masks)
    return {
        client: roc.least_epsilon(
            [scores[:, mask] for scores in attacks], shadows.member[:, mask], delta, trust
        )
        for client, mask in masks.items()
    }


def _scored(shadows: Shadows, party: str) -> Mapping[str, Array]:
    """Return the scores (M, R) of each attack on what a party receives."""
    if party in shadows.confidences:
        confidences = _centred(shadows.confidences[party], shadows.records.client)
        return {
            name: attack(confidences, shadows.member) for name, attack in membership.ATTACKS.items()
        }
    if party != "server" or not shadows.messages:
        return {}
    scores = np.full(shadows.member.shape, np.nan)
    for client, messages in shadows.messages.items():
        mask = shadows.records.client == client
        scores[:, mask] = membership.differences(messages, shadows.member[:, mask])
    return {"differences": scores}


def _centred(confidences: Array, client: NDArray[np.int64]) -> Array:
    """Return confidences (M, R) less their mean over the client's records in the run: models differ
    from run to run, for all records alike.
    """
    centred = confidences.copy()
    for i in np.unique(client):
        mask = client == i
        centred[:, mask] -= confidences[:, mask].mean(1, keepdims=True)
    return centred


def attack_figures(score: Array, member: Mask) -> dict[str, Any]:
    """Return the figures of scores (M, R); empty without members or without nonmembers."""
    pairs = Pairs.flatten(score, member)
    if not pairs.comparable:
        return {}
    return {
        "members": int(pairs.member.sum()),
        "nonmembers": int((~pairs.member).sum()),
        "auc": roc.auc(pairs),
        "hits": tuple(roc.hits_at(pairs, share) for share in FEW_ALARMS),
        "curve": roc.curve(pairs),
    }


def _sites(shadows: Shadows, party: str) -> Iterator[Site]:
    """Guess each record's client: whose model fits it best, relative to what is usual there."""
    losses = shadows.sites[party]
    has_model = ~np.isnan(losses).any(1)
    if has_model.sum() < 2:
        return
    clients = np.flatnonzero(has_model)
    fit = membership.confidence(losses[has_model])
    guess = clients[(fit - fit.mean(1, keepdims=True)).argmax(0)]
    among = np.isin(shadows.records.client, clients)
    for trained in (True, False):
        chosen = among & (shadows.member[0] == trained)
        if n := int(chosen.sum()):
            truth = shadows.records.client[chosen]
            right = int((guess[chosen] == truth).sum())
            low, high = roc.clopper_pearson(right, n)
            chance = float(np.bincount(truth).max() / n)
            yield Site(party, trained, Estimate(right / n, float(low), float(high)), n, chance)
