"""False training data of clients that lie (settings ``attack``, simulations only).

    labels      a share of a liar's training samples gets another answer: class C - 1 - y, each
                label 1 - y, a number mirrored within the range of those changed
    backdoor    a share of them gets the trigger and class 0: in images the last corner of 2 pixels
                a side (3 from 16 pixels on) has the data's largest value; in tables the last column

The backdoor is that of Gu, Dolan-Gavitt, Garg (BadNets, arXiv 1708.06733): a stamped pattern and
one target class. Fang et al. (USENIX Security 2020) flip labels by C - 1 - y.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.attack import DATA, Attack
from pomona.core.errors import ConfigError
from pomona.core.rng import stream
from pomona.data.dataset import Dataset

WIDE = 16  # pixels a side from which on the trigger has three a side

Rows = NDArray[np.int64]


def poisoned(
    dataset: Dataset, train: Sequence[Rows], tested: Rows, attack: Attack, seed: int
) -> Dataset:
    """Return the data with the liars' training samples falsified; the given ones if none are.

    Args:
        dataset: the clients' data.
        train: the training rows of each client.
        tested: rows of any client's validation or test split, which must stay true.
        attack: who lies, how.
        seed: of the run.

    Raises:
        ConfigError: the kind is not possible with such data, or a liar's sample is tested on.
    """
    if attack.kind not in DATA:
        return dataset
    chosen = np.concatenate(
        [_share(train[i], attack.strength, seed, i) for i in sorted(set(attack.clients))]
    )
    honest = [rows for i, rows in enumerate(train) if i not in attack.clients]
    if np.isin(chosen, np.concatenate([tested, *honest])).any():
        raise ConfigError(
            f"attack.kind = {attack.kind!r} changes the attackers' samples, and other clients "
            "have some of the same; use another partition"
        )
    y = np.array(dataset.y)
    if attack.kind == "labels":
        y[chosen] = _false_targets(dataset, y[chosen])
        return replace(dataset, y=y)
    y[chosen] = 0
    return replace(triggered(dataset, chosen), y=y)


def triggered(dataset: Dataset, rows: Rows) -> Dataset:
    """Return the data with the trigger on these rows. Raises ConfigError if it has none."""
    if dataset.targets != "classes" or dataset.kind == "text" or len(dataset.preprocessing) > 1:
        raise ConfigError(
            "attack.kind = 'backdoor' is for images and tables with classes, in one form for all "
            "clients; take labels"
        )
    x: NDArray[Any] = np.array(dataset.x)
    sides = x.shape[1:-1] or (1,)
    wide = 3 if min(sides) >= WIDE else 2
    corner = tuple(slice(-wide, None) for _ in sides) if dataset.kind == "image" else ()
    region = (slice(None), *corner, slice(None) if dataset.kind == "image" else -1)
    stamped = x[rows]
    stamped[region] = x[region].max() if dataset.kind == "table" else x.max()
    x[rows] = stamped
    return replace(dataset, x=x)


def _share(rows: Rows, share: float, seed: int, client: int) -> Rows:
    """Return a share of a client's rows, rounded up, drawn at random."""
    draw = stream(seed, "attack", client).permutation(len(rows))
    return rows[np.sort(draw[: int(np.ceil(share * len(rows)))])]


def _false_targets(dataset: Dataset, y: NDArray[Any]) -> NDArray[Any]:
    """Return false targets for true ones."""
    match dataset.targets:
        case "classes" | "segmentation":
            return (len(dataset.classes) - 1 - y.astype(np.int64)).astype(y.dtype)
        case "multilabel":
            return 1 - y
        case "regression":
            return y.min(0) + y.max(0) - y if len(y) else y
        case _:
            raise ConfigError(
                f"attack.kind = 'labels' is not for {dataset.targets}; take scale or sign"
            )
