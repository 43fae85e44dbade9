"""A record's views for spreadsheets and people: ``rounds.csv``, ``clients.csv``, ``summary.json``."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pomona.core.table import csv_text

if TYPE_CHECKING:
    from pomona.record.record import Result


def write_views(result: "Result", folder: Path) -> None:
    """Write them. Raises OSError."""
    (folder / "rounds.csv").write_text(csv_text([*_round_rows(result)]), encoding="utf-8")
    (folder / "clients.csv").write_text(csv_text([*client_rows(result)]), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(result.summary, indent=2) + "\n", encoding="utf-8")


def _round_rows(result: "Result") -> Iterator[dict[str, Any]]:
    traffic = {r.round: r for r in result.rounds}
    for e in result.evaluations:
        row = traffic.get(e.round)
        losses = [x for x in row.loss if x is not None] if row else []
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
            "train_loss_mean_over_clients": float(np.mean(losses)) if losses else None,
            "bytes_down": sum(row.bytes_down) if row else None,
            "bytes_up": sum(row.bytes_up) if row else None,
            "seconds": row.seconds if row else None,
        }


def client_rows(result: "Result") -> Iterator[dict[str, Any]]:
    """A row for each client in each evaluation, those of unseen clients last."""
    names = result.about["clients"]
    unseen = {c for e in result.unseen for c in e.clients}
    traffic = {
        (r.round, c): (down, up)
        for r in result.rounds
        for c, down, up in zip(r.cohort, r.bytes_down, r.bytes_up, strict=True)
    }
    for e in (*result.evaluations, *result.unseen):
        for client, samples, loss, accuracy, value in zip(
            e.clients, e.samples, e.loss, e.accuracy, e.value, strict=True
        ):
            down, up = traffic.get((e.round, client), (None, None))
            yield {
                "round": e.round,
                "client": client,
                "name": names[client],
                "unseen": client in unseen,
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
