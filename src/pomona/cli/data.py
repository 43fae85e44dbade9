"""``pomona data list`` and ``pomona data show``: the scenario before any training."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from pomona.cli.words import config_of, emit, option, out, table

Json = Annotated[bool, Parameter(name="--json", negative="", help="machine-readable output")]


def list_(
    *, data_dir: Annotated[Path | None, Parameter(help="default POMONA_DATA")] = None, json: Json = False
) -> None:
    """List data sets (and whether they are at hand), partitions and models."""
    from pomona.data import DataSettings, describe
    from pomona.models import MODELS
    from pomona.partition import RECIPES

    sets: list[dict[str, Any]] = [vars(entry) for entry in describe(DataSettings(dir=data_dir))]
    if json:
        emit({"data": sets, "partitions": sorted(RECIPES), "models": sorted(MODELS)})
        return
    out.print(table(sets, "Data sets (data.name)"))
    out.print()
    recipes = [{"partition.name": name, "what": _first_line(kind)} for name, kind in sorted(RECIPES.items())]
    out.print(table(recipes, "Partitions"))
    out.print()
    out.print("Models (model.name): " + ", ".join(sorted(MODELS)), highlight=False)


def show(
    *words: str,
    data: Annotated[str | None, Parameter(help="data set")] = None,
    partition: Annotated[str | None, Parameter(help="partition")] = None,
    data_dir: Annotated[Path | None, Parameter(help="folder of data sets; default POMONA_DATA")] = None,
    out_: Annotated[Path | None, Parameter(name="--out", help="folder for the label map as a picture")] = None,
    save: Annotated[Path | None, Parameter(help="file to save the partition to, for partition.name=file")] = None,
    json: Json = False,
) -> None:
    """Show a scenario: sizes, labels per client, divergence from the federation; nothing is trained.

    Parameters
    ----------
    words
        TOML files and key=value settings, for example clients=20 partition.beta=0.1
    """
    from pomona.partition.divergence import effective_classes, emd, label_counts
    from pomona.record import writing
    from pomona.scenario import Scenario

    config = config_of(
        words,
        option("data", "name", data),
        option("data", "dir", str(data_dir) if data_dir else None),
        option("partition", "name", partition),
    )
    scenario = Scenario.prepare(config)
    about = scenario.about()
    classes = bool(scenario.dataset.classes)
    counts = label_counts(scenario.partition, scenario.dataset) if classes else None
    distance = emd(counts).tolist() if counts is not None else [None] * len(about["clients"])
    spread = effective_classes(counts).tolist() if counts is not None else distance
    rows: list[Any] = [
        {
            "client": name,
            **{part: about["sizes"][part][i] for part in ("train", "validation", "test")},
            **({"group": about["groups"][i]} if about["groups"] else {}),
            **({"emd": distance[i], "effective_classes": spread[i]} if classes else {}),
            **({"labels": " ".join(str(c) for c in counts[i])} if counts is not None and len(counts[i]) <= 20 else {}),
        }
        for i, name in enumerate(about["clients"])
    ]
    written = _pictures(about, out_) if out_ and classes else []
    if save:
        with writing(save):
            scenario.partition.save(save)
        written.append(save)
    if json:
        emit({**about, "emd": distance, "effective_classes": spread, "written": written})
        return
    out.print(table(rows, f"{scenario.dataset.name}, {config.partition.name}, seed {config.seed}"))
    out.print(f"data {about['data']['fingerprint'][:16]}, partition {scenario.partition.sha256[:16]}", highlight=False)
    for path in written:
        out.print(f"written  {path}", highlight=False)


def _pictures(about: dict[str, Any], folder: Path) -> list[Path]:
    from pomona.record import Result, writing
    from pomona.report.labels import bubbles, holders
    from pomona.report.numbers import runs
    from pomona.report.style import drawing

    prepared = runs([Result({"method": {"name": "none"}}, about, [], [], [], {})])
    with drawing(), writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pictures = [p for p in (bubbles(prepared), holders(prepared)) if p]
        for picture in pictures:
            picture.save(folder)
    return [folder / f"{p.name}.png" for p in pictures]


def _first_line(kind: type) -> str:
    return (kind.__doc__ or "").strip().splitlines()[0]
