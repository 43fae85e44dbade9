"""FedAvg's server for methods whose clients count by more than their number of samples: FedNova and
q-FedAvg.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from pomona.core.lazy_torch import Tensor, torch
from pomona.core.round import SLACK, reweighted
from pomona.methods import base
from pomona.methods.one_model import fedavg

Ratios = Callable[[Tensor, base.Uplink, Tensor, base.Round], Tensor]
Bounds = Mapping[str, tuple[Tensor, Tensor]]


def reweighted_server(
    reported: Mapping[str, float],
    ratios: Ratios,
    bounds: Callable[[base.Ids, base.Roster, base.Round], Bounds] = lambda *_: {},
    shared: Callable[[base.Initial], Tensor] | None = None,
) -> base.Server:
    """Return FedAvg's server with further client weights: w <- w + sum_i c_i (w_i - w), c_i = p_i
    ratio_i.

    If shares are limited (``Roster.largest``), so are the c_i, and their sum is at most 1
    (``core.round.reweighted``). Clients that are limited, or whose number is outside its
    bounds, are reported with a reason.

    ``reported``: the numbers (1,) float64 that a client uploads with its model, with the lower
    bound of each. ratios(w, uplink, p, round) -> (n,), from the model sent (d,) and FedAvg's
    weights p (n,). If all ratios are 1 this is FedAvg, to the bit. bounds(ids, roster, round) -> by
    name the lower and upper bounds (n,) of a number, derived from what is known about the clients;
    a number outside is replaced by the nearest bound. ``shared``: as of FedAvg's server.
    """
    mean = fedavg.server(shared)

    def method_weights(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the ratios, by numbers limited to their bounds, and the c_i (n,) before and after
        their limit, on the CPU.
        """
        p = roster.weights(ids)
        within_bounds = {
            name: uplink[name].cpu().clamp(low.unsqueeze(1), high.unsqueeze(1))
            for name, (low, high) in bounds(ids, roster, round_).items()
        }
        ratio = ratios(w, {**uplink, **within_bounds}, p, round_).to(p)
        c = p * ratio
        capped = torch.tensor(reweighted(p.tolist(), c.tolist(), roster.largest), dtype=p.dtype)
        return ratio, c, capped

    def aggregate(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> Tensor:
        p, W = roster.weights(ids), uplink["model"]
        ratio, c, capped = method_weights(w, uplink, ids, roster, round_)
        extra = p * (ratio - 1) if torch.equal(capped, c) else capped - p
        return base.weighted_mean(W, p.to(w.device)) + extra.to(W) @ (base.chunked(W) - w)

    def capped_clients(
        w: Tensor, uplink: base.Uplink, ids: base.Ids, roster: base.Roster, round_: base.Round
    ) -> dict[int, str]:
        reasons = out_of_bounds(uplink, ids, bounds(ids, roster, round_))
        _, c, capped = method_weights(w, uplink, ids, roster, round_)
        shares = (c / c.sum()).tolist(), (capped / capped.sum()).tolist()
        for k, (i, share, capped_share) in enumerate(zip(ids, *shares, strict=True)):
            if i not in reasons and capped_share < share * (1 - SLACK):
                numbers = ", ".join(f"{name} {float(uplink[name][k]):.4g}" for name in reported)
                reasons[i] = (
                    f"{numbers}, by which it has {100 * share:.3g} % of the mean; it counts for "
                    f"{100 * capped_share:.3g} %"
                )
        return reasons

    def uplink_form(w: Tensor) -> base.Uplink:
        return {"model": w, **{name: torch.zeros(1, dtype=torch.float64) for name in reported}}

    def invalid(uplink: base.Uplink) -> str | None:
        for name, lower in reported.items():
            if (number := float(uplink[name])) < lower:
                return f"tensor '{name}' holds {number:.3g}, where at least {lower:g} is possible"
        return None

    return replace(
        mean,
        aggregate=aggregate,
        uplink_form=uplink_form,
        invalid=invalid,
        capped_clients=capped_clients,
        sums=False,
    )


def out_of_bounds(uplink: base.Uplink, ids: base.Ids, bounds: Bounds) -> dict[int, str]:
    """Return the clients whose numbers are outside their bounds, with a reason."""
    reasons = {}
    for name, (low, high) in bounds.items():
        for i, value, lower, upper in zip(
            ids, uplink[name].squeeze(1).tolist(), low.tolist(), high.tolist(), strict=True
        ):
            if not lower * (1 - SLACK) <= value <= upper * (1 + SLACK):
                reasons[i] = (
                    f"{name} {value:.4g}, and its samples make {lower:.4g} to {upper:.4g}; it "
                    "counts by those"
                )
    return reasons
