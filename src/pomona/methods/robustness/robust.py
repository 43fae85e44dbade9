"""Robust means: against clients that lie, for every method that averages.

Sun, Kairouz, Suresh, McMahan. Can you really backdoor federated learning? arXiv 1911.07963, sec. 5
(clipped). Karimireddy, He, Jaggi. Learning from history for Byzantine robust optimization. ICML
2021 (arXiv 2012.10333), sec. 4 (centred). Yin, Chen, Ramchandran, Bartlett. Byzantine-robust
distributed learning: towards optimal statistical rates. ICML 2018 (arXiv 1803.01498), definitions 1
and 2 (median, trimmed). Pillutla, Kakade, Harchaoui. Robust aggregation for federated learning.
IEEE TSP 2022 (arXiv 1912.13445), Algorithm 2 (geometric). Blanchard, El Mhamdi, Guerraoui, Stainer.
Machine learning with adversaries: Byzantine tolerant gradient descent. NeurIPS 2017, sec. 4 (krum).

    client           the method's own
    server           the method's own mean, of the rule's rows in the place of the uploaded w_i;  D_i = w_i - w, w as sent
    clipped          w + min(1, t / |D_i|) D_i,   t = c median_j |D_j|
    centred          w + v,   v <- v + sum_i p_i min(1, t / |D_i - v|) (D_i - v)   L times from v = 0,   t = c median_j |D_j - v|
    median           by coordinate the median of the w_i
    trimmed          by coordinate the mean of the w_i without the f largest and the f smallest
    geometric        argmin_z sum_i p_i |w_i - z|,   z <- sum_i b_i w_i / sum_i b_i   with b_i = p_i / |w_i - z|
    krum             the mean of the m models with the smallest s_i, the sum of the squared distances to the n - f - 2 closest others

A name followed by ``+clipped``, ``+centred``, ``+median``, ``+trimmed``, ``+geometric`` or
``+krum`` (``fedrep+median``) is that method with the rule before the mean of its server, for every
method whose server keeps only the mean of its uplinks' models, or of a part of them; an optimizer
may follow (``fedavg+clipped+adam``). After an estimate (all but clipped) every row is the same, so
that only the sum of the server's weights matters: 1, but for q-FedAvg, where losses make it any
number up to 1, and FedNova, where steps make it 1 or more (1 with ``largest_share`` below 1). A
rule is for models only: other numbers (a loss, steps, Fisher information) and BatchNorm
statistics are taken as they come, up to ``largest_share`` of the weight.

With at most half of the clients lying, what one of any size adds to a clipped mean is at most its
weight times the radius, which is no longer than c times the longest honest change. The results of
the others do not grow with a liar's size either, for fewer liars than half (geometric: with less
than half of the weight), or for up to f (trimmed, krum). Liars that send what they received can
make a radius 0, at half of the clients: then nothing moves.

Differs from the papers: median, trimmed and krum count every client alike, as printed there;
clipped, centred and geometric have the method's weights, where Karimireddy et al. print 1 / n.
Radii are c times a round's median distance; the papers have a constant. Centred clipping starts
from the model sent, without the momentum and the last round's centre of its theory. The steps to
the geometric median begin with changes of at most 100 medians, and leave a client's model as those
of Vardi and Zhang (PNAS 2000) do. m is n - f unless set. f is ``robust_liars`` of n, rounded down,
and less where n clients do not allow it: f < n / 2, and n >= 2 f + 3 for krum, which allows for
none among four. Differs from published code: ByzFL's krum adds one neighbour more.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from pydantic import Field

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.settings import Settings
from pomona.methods import base
from pomona.methods.robustness import robust_rules
from pomona.methods.suffixes import require_mean, with_suffix


class Clipped(Settings):
    """Settings of clipping; symbols of the papers in brackets.

    Attributes:
        robust_radius: longest change of a client, in medians of the round's changes (c)
    """

    robust_radius: float = Field(2.0, gt=0, le=1e6)


class Centred(Settings):
    """Settings of centred clipping; symbols of the papers in brackets.

    Attributes:
        robust_radius: longest distance from the last centre, in medians of the distances (c)
        robust_steps: steps of the centre in a round (L)
    """

    robust_radius: float = Field(1.0, gt=0, le=1e6)
    robust_steps: int = Field(5, ge=1, le=1000)


class Median(Settings):
    """The median has no settings."""


class Trimmed(Settings):
    """Settings of rules for a given number of liars.

    Attributes:
        robust_liars: share of a round's clients that may lie (f / n)
    """

    robust_liars: float = Field(0.34, ge=0, lt=0.5)


class Geometric(Settings):
    """Settings of the geometric median; symbols of the paper in brackets.

    Attributes:
        robust_steps: steps towards the geometric median in a round (R)
    """

    robust_steps: int = Field(100, ge=1, le=10**4)


class Krum(Trimmed):
    """Settings of Krum; symbols of the paper in brackets.

    Attributes:
        robust_chosen: models of which the mean is taken (m); all but the liars if not set, 1: Krum
    """

    robust_chosen: int | None = Field(None, ge=1, le=10**4)


# settings, models (n, k), the model sent (k,), weights (n,) -> rows (n, k)
Rule = Callable[[Any, Tensor, Tensor, Tensor], Tensor]
# the same without weights -> by position, the reason why a client counts for less
CappedClients = Callable[[Any, Tensor, Tensor], Mapping[int, str]]


@dataclass(frozen=True)
class Robust:
    """A rule: its settings, itself, a description and a source for the card, the clients that it
    caps, and how many of n clients may lie, if that is a setting.
    """

    settings: type[Settings]
    rule: Rule
    description: str
    source: str
    capped: CappedClients = lambda *_: {}
    allowed: Callable[[Any, int], int] | None = None

    def unguarded(self, settings: Any, n: int) -> str | None:
        """Return a warning if liars are expected, and the rule allows for none of n clients."""
        if not self.allowed or not settings.robust_liars or self.allowed(settings, n):
            return None
        return (
            f"of {n} clients this rule tolerates no liar, whatever the value of robust_liars; take another "
            "rule, or more clients"
        )


STILL = 1e-3  # length of a change, as a share of the model's, below which it is next to none


def clipped(settings: Clipped, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return models whose changes are no longer than the radius."""
    return robust_rules.clipped(W, w, settings.robust_radius)


def shortened(settings: Clipped, W: Tensor, w: Tensor) -> dict[int, str]:
    """Name the clients whose changes are clipped."""
    factor, length, radius = robust_rules.clipping(robust_rules.gram(W, w), settings.robust_radius)
    warning = (
        ": most clients have hardly changed the model, and the radius is of their changes' length; "
        "look at their data, or take another rule"
        if float(length.median()) <= STILL * float(torch.linalg.vector_norm(w))
        else ""
    )
    return {
        k: f"its change is {float(length[k]):.4g} long, and counts as one of {float(radius):.4g}"
        f"{warning}"
        for k in (factor < 1).nonzero().flatten().tolist()
    }


def centred(settings: Centred, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return the centre after clipping around the last one."""
    G = robust_rules.gram(W, w)
    a = robust_rules.centred(
        G, p, settings.robust_steps, lambda r: settings.robust_radius * r.median()
    )
    return W if a is p else _estimate(W, w, a)


def median(settings: Median, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return the median by coordinate."""
    return robust_rules.repeated(robust_rules.median(W), len(W))


def trimmed(settings: Trimmed, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return the trimmed mean by coordinate."""
    f = robust_rules.tolerated(len(W), settings.robust_liars)
    return robust_rules.repeated(robust_rules.trimmed(W, f), len(W))


def geometric(settings: Geometric, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return the geometric median."""
    a = robust_rules.geometric(robust_rules.gram(W, w), p, settings.robust_steps)
    return W if a is p else _estimate(W, w, a)


def krum(settings: Krum, W: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Return the mean of the chosen models."""
    return _estimate(W, w, _chosen(settings, W, w))


def not_chosen(settings: Krum, W: Tensor, w: Tensor) -> dict[int, str]:
    """Name the clients that are not chosen."""
    a = _chosen(settings, W, w)
    return dict.fromkeys(
        (a == 0).nonzero().flatten().tolist(),
        "its model is too far from the others', and does not count",
    )


def _chosen(settings: Krum, W: Tensor, w: Tensor) -> Tensor:
    n = len(W)
    f = _liars(settings, n)
    return robust_rules.krum(
        robust_rules.gram(W, w), min(settings.robust_chosen or n - f, n), max(1, n - f - 2)
    )


def _liars(settings: Krum, n: int) -> int:
    return max(0, min(robust_rules.tolerated(n, settings.robust_liars), (n - 3) // 2))


def _estimate(W: Tensor, w: Tensor, a: Tensor) -> Tensor:
    return robust_rules.repeated(robust_rules.combined(W, w, a), len(W))


RULES: Mapping[str, Robust] = {
    "clipped": Robust(
        Clipped, clipped, "changes clipped to a common length", "Sun et al., 2019", shortened
    ),
    "centred": Robust(
        Centred, centred, "models clipped around a centre", "Karimireddy et al., ICML 2021"
    ),
    "median": Robust(Median, median, "the median by coordinate", "Yin et al., ICML 2018"),
    "trimmed": Robust(
        Trimmed,
        trimmed,
        "the trimmed mean by coordinate",
        "Yin et al., ICML 2018",
        allowed=lambda settings, n: robust_rules.tolerated(n, settings.robust_liars),
    ),
    "geometric": Robust(
        Geometric, geometric, "the geometric median", "Pillutla et al., IEEE TSP 2022"
    ),
    "krum": Robust(
        Krum,
        krum,
        "the models with the closest neighbours",
        "Blanchard et al., NeurIPS 2017",
        not_chosen,
        _liars,
    ),
}
"""Suffixes of a method's name."""


def guarded(inner: base.Server, robust: Robust, settings: Any) -> base.Server:
    """Return an averaging server that takes its mean of the rule's rows."""

    def ruled(w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster) -> base.Uplink:
        rows = robust.rule(settings, uplink["model"], w, roster.weights(ids))
        return {**uplink, "model": rows}

    def aggregate(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Any:
        return inner.aggregate(w, ruled(w, uplink, ids, roster), ids, roster, round_)

    def capped_clients(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> dict[int, str]:
        reasons = robust.capped(settings, uplink["model"], w)
        by_id = {ids[k]: phrase for k, phrase in reasons.items()}
        return by_id | dict(
            inner.capped_clients(w, ruled(w, uplink, ids, roster), ids, roster, round_)
        )

    # a rule needs the single models
    return replace(inner, aggregate=aggregate, capped_clients=capped_clients, sums=False)


@cache
def robustified(settings_class: type[base.MethodSettings], rule: str) -> type[base.MethodSettings]:
    """Return settings that combine a method's with a rule's in one section; the same class at each
    call.

    Raises ConfigError for a method whose server state is not just a mean.
    """
    require_mean(settings_class, rule, "a robust rule is for")
    robust = RULES[rule]

    def method(settings: Any) -> base.Method:
        inner = settings_class.method(settings)
        card = inner.card
        presentation = replace(card.presentation, title=f"{card.presentation.title}+{rule}")
        card = replace(
            card,
            presentation=presentation,
            paper=f"{card.paper}; server: {robust.source}",
            summary=f"{card.summary}; against liars: {robust.description}",
        )

        def caution(round_: base.Round, n: int) -> str | None:
            return inner.caution(round_, n) or robust.unguarded(settings, n)

        server = guarded(inner.server, robust, settings)
        return replace(inner, server=server, card=card, caution=caution)

    return with_suffix(settings_class, rule, robust.settings, method)
