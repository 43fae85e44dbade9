"""Results that show what methods put into ``info``, made up by formula."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
from report_results import result

from pomona.core.rng import stream
from pomona.methods import METHODS
from pomona.record.result import Result
from pomona.record.rows import RoundRow

CFL = {"name": "cfl", "eps_mean": 0.5, "eps_max": 0.6, "units": "first-round", "warmup_rounds": 1}


def noise(name: str, *shape: int) -> Any:
    """Numbers in [0, 1), the same for the same name and shape."""
    return stream(1, name, *shape).random(shape)


def showing(
    infos: list[dict[str, Any]],
    cohorts: list[tuple[int, ...]] | None = None,
    *,
    n: int = 6,
    method: dict[str, Any] | None = None,
) -> Result:
    """A run whose round t has ``infos[t]``, arrays of all n clients of which those of ``cohorts[t]`` are recorded."""
    base = result("fedavg", n=n, rounds=len(infos), classes=2)
    rows = []
    for row, info, cohort in zip(base.rounds, infos, cohorts or [tuple(range(n))] * len(infos), strict=True):
        who = list(cohort)
        mine = {name: np.asarray(values, dtype=np.float64)[who] for name, values in info.items()}
        rows.append(RoundRow(row.round, 1.0, cohort, *[(1,) * len(who)] * 3, mine))
    config = {**base.config, "method": method or {"name": "fedavg"}}
    own = METHODS[config["method"]["name"]]().method().card.presentation
    every = [q for kind in METHODS.values() for q in kind().method().card.presentation.quantities]
    words = replace(own, quantities=tuple({q.name: q for q in (*own.quantities, *every)}.values()))
    return replace(base, rounds=rows, config=config, about={**base.about, "presentation": asdict(words)})


def each_kind(rounds: int = 5, n: int = 6) -> list[dict[str, Any]]:
    """For every round, something of every kind: matrices of one sign and of two, scalars, vectors, an unknown name."""
    return [
        {
            "attention": np.eye(n) * 0.5 + 0.1 + 0.02 * noise(f"attention {t}", n, n),
            "affinity": t * (noise("f", n, n) - 0.4),
            "alpha": 0.5 + 0.05 * t * noise("alpha", n),
            "gates": 0.5 + 0.1 * t * (noise("gates", n, 4) - 0.5),
            "inheritance": np.full(n, t / rounds),
            "my own_thing": noise("thing", n, 3) * t,
        }
        for t in range(rounds)
    ]


def clustered() -> Result:
    """CFL over five rounds: six clients, then 0 to 3 and 4 to 5, then 0 to 1 alone; norms as the method records them."""
    labels = [[0] * 6, [0] * 6, [0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 1, 1], [0, 0, 2, 2, 1, 1]]
    infos = []
    for t, cluster in enumerate(labels):
        own = np.linspace(1, 2, 6) / (t + 1)
        norms = np.zeros((6, 2)) if t == 0 else np.stack([[0.1 * (t + c), 0.5 + c] for c in cluster])
        infos.append({"cluster": cluster, "update_norm": own, "cluster_norms": norms})
    return showing(infos, method=CFL)


def weighed() -> Result:
    """Three rounds of weight learning: client 0 learns 0, 3, 1 epochs, client 1 none, 2 (late), 0; client 2 never."""
    losses = [
        np.zeros((3, 4)),
        np.array([[9, 5, 3, 0], [0] * 4, [0] * 4]),
        np.array([[4, 0, 0, 0], [8, 7, 0, 0], [0] * 4]),
    ]
    counts = [[0, 0, 0], [3, 0, 0], [1, 2, 0]]
    infos = [{"ala_losses": loss, "ala_epochs": np.array(count)} for loss, count in zip(losses, counts, strict=True)]
    return showing(infos, n=3, method={"name": "fedala"})
