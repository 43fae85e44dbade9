"""Prometheus' text format 0.0.4: metric families and their samples, as served at ``/metrics``."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@dataclass(frozen=True)
class Sample:
    """One value and its labels."""

    value: float
    labels: Mapping[str, str]


@dataclass(frozen=True)
class Family:
    """Samples of one name; omitted from the output without samples.

    A counter's name ends in ``_total``.
    """

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        assert NAME.fullmatch(self.name), self.name
        assert (self.kind == "counter") == self.name.endswith("_total"), self.name
        assert all(LABEL.fullmatch(label) for sample in self.samples for label in sample.labels), (
            self.name
        )


def gauge(name: str, text: str, value: float | None, **labels: str) -> Family:
    """A gauge with one sample; without a sample if the value is unknown."""
    return Family(name, "gauge", text, () if value is None else (Sample(value, labels),))


def gauges(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Family:
    """A gauge with one sample per label value, for the known ones."""
    return Family(
        name,
        "gauge",
        text,
        tuple(Sample(v, {label: k}) for k, v in values.items() if v is not None),
    )


def counters(name: str, text: str, label: str, values: Mapping[str, float]) -> Family:
    """A counter with one sample per label value."""
    return Family(name, "counter", text, tuple(Sample(v, {label: k}) for k, v in values.items()))


def counter(name: str, text: str, value: float) -> Family:
    """A counter with one sample."""
    return Family(name, "counter", text, (Sample(value, {}),))


def merged(label: str, groups: Mapping[str, Iterable[Family]]) -> list[Family]:
    """Merge the families of several groups, each name once; the group becomes an extra label of its
    samples.
    """
    families_by_name: dict[str, Family] = {}
    for group, families in groups.items():
        for family in families:
            samples = tuple(Sample(s.value, {label: group, **s.labels}) for s in family.samples)
            previous = families_by_name.get(family.name)
            families_by_name[family.name] = replace(
                family, samples=(previous.samples if previous else ()) + samples
            )
    return list(families_by_name.values())


def rendered(families: Iterable[Family]) -> str:
    """The text of all families that have samples."""
    lines = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += [
                f"{family.name}{_labels(s.labels)} {_number(s.value)}" for s in family.samples
            ]
    return "".join(f"{line}\n" for line in lines)


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(text: str) -> str:
    return _escaped(text).replace('"', '\\"')


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
