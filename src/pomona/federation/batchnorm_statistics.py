"""BatchNorm statistics, sent next to the models: rows handled by methods do not contain any.

Statistics affect only evaluation, not training. With ``buffers = "average"`` those of a global
model are sent with it: each client measures them while it trains, starting from the received ones,
and the server averages the cohort's, weighted by samples. They are never decayed, pulled, compared
or extrapolated, whatever a method does with its rows. All other models are evaluated with
statistics estimated on the client's own training data.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pomona.core.round import Ids, Roster, Round
from pomona.methods.base import Downlink, Initial, Rows, Server, Uplink, weighted_mean
from pomona.objective.training import STATISTICS


@dataclass(frozen=True)
class WithStatistics:
    """A server's state, and the statistics (b,) of its global model."""

    method: Any
    statistics: Tensor


def with_statistics(server: Server, initial: Initial) -> Server:
    """Return a server that also averages statistics; the given one if there are none, or no global
    model.
    """
    if not server.global_model or not initial.statistics.numel():
        return server

    def start(initial: Initial, roster: Roster, seed: int) -> WithStatistics:
        return WithStatistics(server.start(initial, roster, seed), initial.statistics)

    def downlink(state: WithStatistics, ids: Ids, roster: Roster, round_: Round) -> Downlink:
        downlink = server.downlink(state.method, ids, roster, round_)
        return {**downlink, STATISTICS: Rows.broadcast(state.statistics, len(ids))}

    def aggregate(
        state: WithStatistics, uplink: Uplink, ids: Ids, roster: Roster, round_: Round
    ) -> WithStatistics:
        mean = weighted_mean(uplink[STATISTICS], roster.weights(ids))
        return WithStatistics(
            server.aggregate(state.method, without_statistics(uplink), ids, roster, round_), mean
        )

    def add_clients(
        state: WithStatistics, ids: Ids, roster: Roster
    ) -> tuple[WithStatistics, Tensor | None]:
        inner, row = server.add_clients(state.method, ids, roster)
        return replace(state, method=inner), row

    def uplink_form(state: WithStatistics) -> Uplink:
        return {**server.uplink_form(state.method), STATISTICS: state.statistics}

    def closing(state: WithStatistics, roster: Roster, round_: Round) -> str | None:
        return server.closing(state.method, roster, round_)

    def capped_clients(
        state: WithStatistics, uplink: Uplink, ids: Ids, roster: Roster, round_: Round
    ) -> Mapping[int, str]:
        return server.capped_clients(state.method, without_statistics(uplink), ids, roster, round_)

    def invalid(uplink: Uplink) -> str | None:
        if any(bool((uplink[STATISTICS][variance] < 0).any()) for variance in initial.variances):
            return f"tensor '{STATISTICS}' holds a variance below 0"
        return server.invalid(without_statistics(uplink))

    return replace(
        server,
        start=start,
        downlink=downlink,
        aggregate=aggregate,
        add_clients=add_clients,
        uplink_form=uplink_form,
        closing=closing,
        invalid=invalid,
        capped_clients=capped_clients,
    )


def without_statistics(uplink: Uplink) -> Uplink:
    """Return the method's own part of an uplink."""
    return {name: rows for name, rows in uplink.items() if name != STATISTICS}
