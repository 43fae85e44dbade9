"""Results made up by formula, so that a report needs no training."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from pomona.core.rng import stream
from pomona.methods import METHODS
from pomona.record.predictions import Answers
from pomona.record.result import Result
from pomona.record.rows import Evaluation, RoundRow

VIEWS = {
    "separate": [("personal", "trained")],
    "fedavg": [("global", "received"), ("local", "trained")],
    "fedavg-ft": [("global", "received"), ("personal", "received")],
    "apple": [("personal", "trained")],
}
CEILING = {"separate": 0.78, "fedavg": 0.70, "fedavg-ft": 0.88, "apple": 0.94}
SHARES = {"validation": 0.5, "test": 0.75}
MODEL_BYTES = 431_080 * 4


def relationships(groups: np.ndarray, share: float) -> np.ndarray:
    """A (n, n) matrix that moves from even weights to large ones within groups."""
    n = len(groups)
    noise = stream(1, "relationships").normal(0, 0.02, (n, n))
    kin = np.where(groups[:, None] == groups[None, :], 0.32, -0.03)
    return (1 - share) / n + share * (kin + np.eye(n) * 0.5 + noise)


def cosine(number: int, last: float) -> float:
    """APPLE's cosine scheduler: from 1 to 0 at round ``last``."""
    return float(1 + np.cos(np.pi * min(1.0, number / last))) / 2


def result(
    method: str = "apple",
    *,
    n: int = 12,
    rounds: int = 40,
    classes: int = 10,
    seed: int = 1,
    mu: float = 0.1,
    names: list[str] | None = None,
) -> Result:
    """A finished run of a method with every kind of record."""
    draw = stream(seed, "synthetic", sorted(CEILING).index(method))
    groups = np.arange(n) * 3 // max(n, 1)
    dealt = stream(seed, "dealt")
    counts = np.maximum(0, dealt.normal(8, 6, (n, classes)) + 160 * (dealt.random((n, classes)) > 0.75)).astype(int) + 1
    test = counts.sum(axis=1) // 4 + 1
    ease = np.linspace(-0.12, 0.05, n) + draw.normal(0, 0.02, n)
    evaluations, rows = [], []
    for number in range(1, rounds + 1):
        grown = 1 - np.exp(-5 * number / 40)
        info = {"dr": relationships(groups, grown), "schedule": np.array(cosine(number, 0.5 * rounds))}
        info = info if method == "apple" else {}
        rows.append(
            RoundRow(
                number, 1.5, tuple(range(n)), tuple((2.3 * (1 - 0.9 * grown) + draw.normal(0, 0.02, n)).tolist()),
                *[(0 if method == "separate" else MODEL_BYTES * k,) * n for k in (n - 1 if "dr" in info else 1, 1)],
                info,
            )
        )  # fmt: skip
        for model, when in VIEWS[method]:
            for split in ("validation", "test"):
                peak = CEILING[method] - 0.06 * (model == "global" and when == "received") - 0.02 * (model == "local")
                accuracy = np.clip((peak + ease) * grown + draw.normal(0, 0.01, n), 0, 1)
                evaluations.append(
                    Evaluation(number, model, when, split, tuple(range(n)), tuple(test.tolist()),
                               tuple((2.4 - 2 * accuracy).tolist()), tuple(accuracy.tolist()))
                )  # fmt: skip
    config: dict[str, Any] = {
        "rounds": rounds, "local_epochs": 5, "batch_size": 256, "lr": 0.01, "momentum": 0.9, "seed": seed,
        "method": {"name": method}
        | ({"mu": mu, "schedule": "cosine", "schedule_share": 0.5} if method == "apple" else {}),
        "data": {"name": "digits"}, "partition": {"name": "practical", "clients": n}, "model": {"name": "lenet"},
    }  # fmt: skip
    about = {
        **presented(method), "clients": names or [f"clinic {i + 1}" for i in range(n)], "classes": [f"digit {c}" for c in range(classes)],
        "sizes": {"train": counts.sum(axis=1).tolist(), "validation": (test // 2).tolist(), "test": test.tolist()},
        "label_counts": counts.tolist(), "groups": groups.tolist(), "versions": {"pomona": "0.1.0", "torch": "2.13.0"},
        "seed": seed, "data": {"name": "digits", "fingerprint": "f" * 16}, "parameters": 431_080,
        "partition_sha256": "ab" * 32, "model": "lenet",
    }  # fmt: skip
    final = [record(e, c, classes) for e in evaluations if e.round == rounds and e.split == "test" for c in e.clients]
    said = answers(test, [e for e in evaluations if e.split == "test"][-1].accuracy, classes) if rounds else {}
    return Result(config, about, rows, evaluations, final, {"seconds": 60.0}, answers=said)


def presented(method: str) -> dict[str, Any]:
    """What the record of a run says of its method."""
    known = METHODS.get(method)
    return {"presentation": asdict(known().method().card.presentation)} if known else {}


def answers(samples: Sequence[int], accuracy: Sequence[float | None], classes: int) -> dict[int, Answers]:
    """Outputs that are right on the share of each client's samples; what is hard is hard for every method."""
    found = {}
    for client, (n, share) in enumerate(zip(samples, accuracy, strict=True)):
        truth = np.arange(n) % classes
        easy = stream(1, "easy", client).permutation(n)[: round((share or 0) * n)]
        said = (truth + 1) % max(classes, 2)
        said[easy] = truth[easy]
        found[client] = (4 * np.eye(max(classes, 2), dtype=np.float32)[said], truth)
    return found


def record(evaluation: Evaluation, client: int, classes: int) -> dict[str, Any]:
    """The final metrics of one client: right answers on the diagonal, mistakes one class further."""
    accuracy, samples = evaluation.accuracy[client], evaluation.samples[client]
    each = samples // classes
    right = round(accuracy * each)
    confusion = np.eye(classes, dtype=int) * right + np.roll(np.eye(classes, dtype=int), 1, axis=1) * (each - right)
    return {
        "model": evaluation.model, "when": evaluation.when, "split": "test", "client": client,
        "samples": samples, "loss": evaluation.loss[client],
        "accuracy": accuracy, "intervals": {"accuracy": [max(0.0, accuracy - 0.03), min(1.0, accuracy + 0.03)]},
        "balanced_accuracy": accuracy, "macro_f1": accuracy, "auroc": None if client == 1 else 0.99, "ece": 0.031,
        "sensitivity": [accuracy] * classes, "confusion": confusion.tolist(),
    }  # fmt: skip


def comparison(**shape: Any) -> list[Result]:
    """Separate, FedAvg, FedAvg-FT and APPLE on one scenario."""
    return [result(method, **shape) for method in VIEWS]


def regression(method: str = "apple", errors: Sequence[float] = (0.6, 0.9, 0.3)) -> Result:
    """A run that predicts numbers: the mean absolute error of each client is what is said, in every round."""
    n = len(errors)
    base = result(method, n=n, rounds=4, classes=2)
    evaluations = [replace(e, accuracy=(None,) * n, value=tuple(errors), metric="mae") for e in base.evaluations]
    final = [
        {k: r[k] for k in ("model", "when", "split", "client", "samples")} | {"mse": 0.5, "mae": error, "r2": None}
        for r, error in zip(base.final, errors, strict=False)
    ]
    about = {
        **base.about, "classes": [], "label_counts": None, "groups": [], "targets": "regression", "metric": "mae",
    }  # fmt: skip
    return replace(base, evaluations=evaluations, final=final, about=about, answers=off(method, errors))


def off(method: str, errors: Sequence[float], samples: int = 40) -> dict[int, Answers]:
    """Answers that miss every number by a client's error, more or less."""
    found = {}
    for client, error in enumerate(errors):
        truth = stream(1, "truth", client).normal(size=(samples, 1)).astype(np.float32)
        miss = stream(1, "miss", client, sorted(CEILING).index(method)).uniform(0.9, 1.1, (samples, 1))
        found[client] = ((truth + error * miss).astype(np.float32), truth)
    return found


def guarded(method: str = "fedavg-ft", void: str | None = None) -> Result:
    """A private run of four clients, of which client 3 was never trained with; client 1 has no bound on epsilon."""
    base = result(method, n=4, rounds=3, classes=3)
    model, when = VIEWS[method][-1]
    unseen = [Evaluation(3, model, when, split, (3,), (50,), (0.25,), (share,)) for split, share in SHARES.items()]
    private = {"noise_multiplier": 1.1, "max_grad_norm": 0.5, "delta": 1e-5, "acknowledge": ["metrics"]}
    spent = {"epsilon": None, "delta": 1e-5, "clients": [1.5, None, 2.25, 0.0], "void": void}
    config = {**base.config, "privacy": private}
    about = {**base.about, "headline": [model, when]}
    return replace(base, config=config, about=about, unseen=unseen, summary={**base.summary, "privacy": spent})


def degenerate() -> dict[str, Callable[[], list[Result]]]:
    """Runs that lack something, by what they lack."""
    plain = result("fedavg", n=4, rounds=6, classes=3)
    apple = result("apple", n=3, rounds=5, classes=3)
    bare = {**plain.about, "classes": [], "label_counts": None, "groups": [], "sizes": {}}
    return {
        "no validation": lambda: [replace(plain, evaluations=[e for e in plain.evaluations if e.split == "test"])],
        "one client": lambda: [result("apple", n=1, rounds=3, classes=3)],
        "two clients": lambda: [result("apple", n=2, rounds=3, classes=3)],
        "one round": lambda: comparison(n=3, rounds=1, classes=2),
        "cut short": lambda: [
            replace(plain, rounds=plain.rounds[:2], evaluations=plain.evaluations[:4], final=[], summary={})
        ],
        "nothing happened": lambda: [replace(plain, rounds=[], evaluations=[], final=[], summary={})],
        "no evaluation": lambda: [replace(plain, evaluations=[], final=[])],
        "no relationships": lambda: [replace(apple, rounds=[replace(r, info={}) for r in apple.rounds])],
        "no labels": lambda: [replace(plain, about=bare)],
        "no about": lambda: [replace(plain, about={})],
        "regression": lambda: [regression(), regression()],
        "only separate": lambda: [result("separate", n=3, rounds=3, classes=3)],
        "one class": lambda: [result("fedavg", n=3, rounds=3, classes=1)],
        "a client without test samples": lambda: [replace(plain, evaluations=[without(e) for e in plain.evaluations])],
        "partial cohorts": lambda: [replace(apple, rounds=[halved(r) for r in apple.rounds])],
        "unequal scenarios": lambda: [plain, replace(result("separate", n=6, rounds=4), about={})],
        "seeds": lambda: [result("fedavg", n=3, rounds=3, classes=2, seed=s) for s in (1, 2, 3)],
        "private, and a client unseen": lambda: [guarded(), plain],
        "the same run twice": lambda: [plain, plain],
        "a hundred clients": lambda: [result("fedavg", n=100, rounds=4, classes=8)],
    }


def without(evaluation: Evaluation) -> Evaluation:
    """The evaluation as if client 0 had no samples."""
    return replace(
        evaluation,
        samples=(0, *evaluation.samples[1:]),
        loss=(None, *evaluation.loss[1:]),
        accuracy=(None, *evaluation.accuracy[1:]),
    )


def halved(row: RoundRow) -> RoundRow:
    """The round as if only clients 0 and 2 had taken part."""
    kept = {name: tuple(getattr(row, name)[i] for i in (0, 2)) for name in ("cohort", "loss", "bytes_down", "bytes_up")}
    return replace(row, **kept, info={**row.info, "dr": row.info["dr"][[0, 2]]})
