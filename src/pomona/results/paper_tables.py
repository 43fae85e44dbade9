"""Tables of the papers: every printed number, and the stated settings.

Sources: Luo and Wu, "Adapt to Adaptation: Learning Personalization for Cross-Silo Federated Learning" (APPLE), IJCAI
2022, and its slides; Huang et al., "Personalized Cross-Silo Federated Learning on Non-IID Data" (FedAMP), AAAI 2021;
Zhang et al., "FedALA", AAAI 2023; Zhang et al., "Personalized Federated Learning with First Order Model Optimization"
(FedFomo), ICLR 2021; Luo et al., "PGFed", ICCV 2023, table 1 as its authors' repository shows it (ljaiverson/pgfed).
``paper_tables.json`` beside this file holds them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal, NamedTuple

NAMES = {"apple": "APPLE", "fedamp": "FedAMP", "fedala": "FedALA", "fedfomo": "FedFomo", "pgfed": "PGFed"}
OWN = {
    "apple": ("APPLE",),
    "fedamp": ("FedAMP", "HeurFedAMP"),
    "fedala": ("FedALA",),
    "fedfomo": ("FedFomo",),
    "pgfed": ("PGFed",),
}
"""Prefixes of the rows of a paper's own methods."""

Moment = Literal["best_test", "best_validation", "last"]
ROUNDS: Mapping[Moment, str] = {
    "best_test": "best round on test",
    "best_validation": "round best on validation",
    "last": "last round",
}


class Count(NamedTuple):
    """Definition of an accuracy: its round, and the kind of average."""

    moment: Moment
    average: Literal["clients", "samples"]

    def __str__(self) -> str:
        if self.average == "clients":
            return f"mean over clients in the {ROUNDS[self.moment]}"
        return f"all test samples together, each counting once, in the {ROUNDS[self.moment]}"


COUNTS: Mapping[str, Count] = {
    **{str(moment): Count(moment, "clients") for moment in ROUNDS},
    **{f"{moment}_pooled": Count(moment, "samples") for moment in ROUNDS},
}
"""All ways of counting, by their names in a CSV."""

COUNTED = {
    "apple": COUNTS["best_test"],
    "fedamp": COUNTS["best_test"],
    "fedala": COUNTS["best_test_pooled"],
    "fedfomo": COUNTS["last"],
    "pgfed": COUNTS["best_test"],
}
"""Each paper's way of counting: the best round on test (BMCTA, BMTA), or the last; over clients, or over samples.

FedALA's published code reports the share of right answers over all test samples (``serverALA.py``, ``evaluate``). Under
label skew this differs from the mean over clients by points, in either direction. PGFed's reports the mean over all
clients, including absent ones (``serverbase.py``, ``evaluate``); for FedBABU only after the last round.
"""

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "apple": {"clients": 12, "rounds": 160, "local_epochs": 5, "batch_size": 256, "model.name": "lenet"},
    "fedamp": {},
    "fedala": {"clients": 20, "rounds": 2000, "local_epochs": 1, "batch_size": 10},
    "fedfomo": {"clients": 15, "rounds": 20, "local_epochs": 5, "batch_size": 50},
    "pgfed": {"rounds": 150, "local_epochs": 5, "batch_size": 10, "participation": 0.25, "model.name": "cnn"},
}
"""Settings that a paper states for all of its tables; a column's own ones take precedence."""

DATA = {
    "mnist": "mnist",
    "fmnist": "fashion-mnist",
    "emnist": "emnist-byclass",
    "cifar10": "cifar10",
    "cifar100": "cifar100",
    "organmnist(axial)": "organamnist",
    "pathmnist": "pathmnist",
    "tiny": "tiny-imagenet",
    "tiny*": "tiny-imagenet",
    "tinyimagenet": "tiny-imagenet",
    "agnews": "ag-news",
}


@dataclass(frozen=True)
class Printed:
    """A figure of a paper.

    Attributes:
        value: in the unit; a word for a setting, None for an epsilon without bound.
        std: as printed, None if there is none.
        unit: such as "accuracy_pct" or "minutes".
        note: a peculiarity; empty if there is none.
    """

    value: float | str | None
    std: float | None
    unit: str
    note: str


@cache
def _rows() -> tuple[dict[str, Any], ...]:
    text = (files("pomona.results") / "paper_tables.json").read_text(encoding="utf-8")
    return tuple(json.loads(text)["rows"])


@cache
def printed(paper: str, table: str) -> Mapping[tuple[str, str, str], Printed]:
    """Return the figures of a table by (setting, data set, row); "4 and 6" is found as both 4 and 6.

    If APPLE's slides and paper differ, the slides' value is used, with a note.
    """
    found = {
        (r["setting"], r["dataset"], r["method"]): Printed(r["value"], r["std"], r["unit"], r.get("note", ""))
        for r in _rows()
        if r["paper"] == paper and table and (table == r["table"] or table in r["table"].split(" and "))
    }
    if paper == "apple" and table == "1":
        for r in _rows():
            key = (r["setting"], r["dataset"], r["method"])
            if r["paper"] == "apple-slides" and key in found and found[key].value != r["value"]:
                note = f"the slides' value; the paper prints {found[key].value}"
                found[key] = Printed(r["value"], r["std"], r["unit"], note)
    return found


def stated(paper: str, setting: str) -> dict[str, Any]:
    """Return a paper's settings for a column: its general ones, with the column's numbers of clients and rounds."""
    settings = dict(SETTINGS.get(paper, {}))
    for key in ("clients", "rounds"):
        if match := re.search(rf"(\d+) {key}", setting):
            settings[key] = int(match[1])
    return settings


def data_of(dataset: str) -> str | None:
    """Return the catalogue's name of a paper's data set; None if it is not in the catalogue."""
    plain = re.sub(r"\s*\((?!axial).*", "", dataset).replace("-", "").replace(" ", "").lower()
    return DATA.get(plain)
