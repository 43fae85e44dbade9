"""Rows of the CSV views of a record, ``rounds.csv`` and ``clients.csv``."""

from collections.abc import Iterator, Sequence
from typing import Any

from pomona.metrics.nan_safe import mean_of_known
from pomona.record.rows import Evaluation, RoundRow


def round_rows(rounds: Sequence[RoundRow], evaluations: Sequence[Evaluation]) -> Iterator[dict[str, Any]]:
    """Yield a row for each evaluation, with the training loss and the traffic of its round."""
    traffic = {r.round: r for r in rounds}
    for e in evaluations:
        row = traffic.get(e.round)
        yield {
            "round": e.round,
            "model": e.model,
            "when": e.when,
            "split": e.split,
            "metric": e.metric,
            "value_mean_over_clients": e.mean,
            "value_over_samples": e.pooled,
            "value_worst_client": e.worst,
            "accuracy_mean_over_clients": e.accuracy_mean,
            "clients": len(e.clients),
            "train_loss_mean_over_clients": mean_of_known(row.loss) if row else None,
            "bytes_down": sum(row.bytes_down) if row else None,
            "bytes_up": sum(row.bytes_up) if row else None,
            "seconds": row.seconds if row else None,
        }


def client_rows(
    names: Sequence[str], rounds: Sequence[RoundRow], evaluations: Sequence[Evaluation], unseen: Sequence[Evaluation]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each client in each evaluation, unseen clients last; ``names`` of all clients."""
    never_trained = {c for e in unseen for c in e.clients}
    traffic = {
        (r.round, c): (down, up) for r in rounds for c, down, up in zip(r.cohort, r.bytes_down, r.bytes_up, strict=True)
    }
    for e in (*evaluations, *unseen):
        for client, samples, loss, accuracy, value in zip(
            e.clients, e.samples, e.loss, e.accuracy, e.value, strict=True
        ):
            down, up = traffic.get((e.round, client), (None, None))
            yield {
                "round": e.round,
                "client": client,
                "name": names[client],
                "unseen": client in never_trained,
                "model": e.model,
                "when": e.when,
                "split": e.split,
                "samples": samples,
                "loss": loss,
                "accuracy": accuracy,
                "metric": e.metric,
                "value": value,
                "bytes_down": down,
                "bytes_up": up,
            }
