"""Runs of several seeds combined into one if local training has the same seeds; a page compares
means over seeds.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from pomona.core.toml import flat
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.headline import finished
from pomona.record.paired_gain import ONE_PARTITION
from pomona.record.rows import Evaluation
from pomona.results.run_numbers import Run, baseline, label
from pomona.results.wording import listing

Group = list[Run]
"""Runs that differ only in their seed, by seed."""


def over_seeds(runs: Sequence[Run]) -> list[Run]:
    """Return the runs to compare on a page: several seeds are combined if local training has the
    same seeds.

    Two runs pair by seed if they share the scenario; seeds are averaged if all have the same test
    samples. Without local training, the first method with several seeds is the reference. Unpaired
    runs are unchanged.
    """
    return list(_compared(tuple(runs))[0])


def unpaired(runs: Sequence[Run]) -> str:
    """Explain why runs of several seeds are not compared over their seeds; empty if not
    applicable.
    """
    return _compared(tuple(runs))[1]


def seed_of(run: Run) -> int:
    """Return a run's seed, the first of several; 0 if unknown."""
    return int(run.setting("seed") or 0)


@lru_cache(maxsize=2)
def _compared(runs: tuple[Run, ...]) -> tuple[tuple[Run, ...], str]:
    groups = _groups(runs)
    lead = _lead(runs, groups)
    paired = [group for group in groups if _pair(group, lead)]
    if len(paired) < 2:
        return runs, _unpaired_reason(groups, lead) if lead else ""
    single = [[run] for run in runs if not any(run in group for group in paired)]
    ordered = sorted([*paired, *single], key=lambda members: min(map(runs.index, members)))
    firsts = [members[0].result for members in ordered]
    combined = (
        _mean(members, label(members[0].result, firsts)) if members in paired else members[0]
        for members in ordered
    )
    return tuple(combined), _unpaired_reason(
        [group for group in groups if group not in paired], lead
    )


def _lead(runs: Sequence[Run], groups: Sequence[Group]) -> Group:
    """Return local training's group, else the first of several seeds; else empty."""
    base = baseline(list(runs), runs[0]) if runs else None
    local = next((group for group in groups if base in group), None)
    return local or next((group for group in groups if len(_seeds(group)) > 1), [])


def _groups(runs: Sequence[Run]) -> list[Group]:
    """Group finished runs that share metric and settings except the seed."""
    alike: dict[str, Group] = {}
    for run in runs:
        if finished(run.result):
            settings = sorted(
                (k, repr(v)) for k, v in flat(run.result.config).items() if k != "seed"
            )
            alike.setdefault(repr((run.metric.name, settings)), []).append(run)
    return [sorted(group, key=seed_of) for group in alike.values()]


def _seeds(group: Group) -> list[int]:
    return sorted(set(map(seed_of, group)))


def _pair(group: Group, lead: Group) -> bool:
    """Return whether a group has the lead's seeds, several and each once, all with the same test
    samples.
    """
    seeds = [*map(seed_of, group)]
    return (
        1 < len(_seeds(group)) == len(seeds)
        and seeds == [*map(seed_of, lead)]
        and group[0].metric == lead[0].metric
        and all(r.scenario == s.scenario for r, s in zip(group, lead, strict=True))
        and len({*map(_test_samples, group)}) == 1
    )


def _test_samples(run: Run) -> tuple[object, ...]:
    """Return a key that is equal for two runs with the same test samples: the data, and each
    client's test rows.
    """
    metadata = run.result.about
    data, partition = run.scenario
    return (
        data,
        *(metadata.get("test_rows") or [partition]),
        *((metadata.get("sizes") or {}).get("test") or ()),
    )


def _unpaired_reason(groups: Sequence[Group], lead: Group) -> str:
    """Explain in one line why groups do not pair with the lead, if either has several seeds."""
    remaining = [
        group
        for group in groups
        if group is not lead
        and group[0].metric == lead[0].metric
        and max(len(_seeds(group)), len(_seeds(lead))) > 1
    ]
    if different := [group for group in remaining if _seeds(group) != _seeds(lead)]:
        titles = listing(
            [f"{group[0].result.presentation.title} ({_listed(group)})" for group in different]
        )
        return (
            f"Gains of {titles} are of single runs, not over seeds: "
            f"{lead[0].result.presentation.title} has "
            f"{_listed(lead)}; run all methods with the same seeds."
        )
    if any(len({*map(_test_samples, group)}) > 1 for group in remaining):
        return (
            "Gains are of single runs, not over seeds, as each seed has other test samples: "
            f"{ONE_PARTITION}."
        )
    return ""


def _listed(group: Group) -> str:
    """Format seeds, ``seeds 0, 1 and 2``."""
    seeds = _seeds(group)
    return f"seed{'s' if len(seeds) > 1 else ''} {listing([*map(str, seeds)])}"


def _mean(group: Group, name: str) -> Run:
    """Return a run for several seeds: their mean value of each client, and the closing records of
    all.
    """
    first, evaluations = group[0].result, [run.reported for run in group if run.reported]
    mean = [_averaged(evaluations)] if len(evaluations) == len(group) else []
    final = [record for run in group for record in run.result.final]
    return Run(replace(first, evaluations=mean, final=final), name, group[0].style, tuple(group))


def _averaged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Average evaluations of one model in several runs; None for a client without a value in any of
    them.
    """
    last = max(evaluations, key=lambda e: e.round)

    def mean(name: str) -> tuple[float | None, ...]:
        lines = (e.by_client(getattr(e, name), last.clients) for e in evaluations)
        return tuple(
            None if None in line else mean_of_known(line) for line in zip(*lines, strict=True)
        )

    return replace(
        last, loss=mean("loss"), accuracy=mean("accuracy"), value=mean("value"), interval=()
    )
