"""``pomona data list`` and ``pomona data show``: the scenario before any training."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from pomona.cli.arguments import config_of, scenario_options
from pomona.cli.output import Json, activity, emit, print_table, respond, stdout
from pomona.core.bounds import SPLITS
from pomona.core.notes import CallerWarnings
from pomona.core.table import of_records

if TYPE_CHECKING:
    from pomona.config import Config
    from pomona.data.dataset import Dataset
    from pomona.data.settings import DataSettings
    from pomona.scenario import Scenario

DISAGREEMENT = 0.1
"""Assumed share of test rows that only one of two models gets right."""
_TITLES = {"regression": "Targets", "segmentation": "Pixels of each class"}
MAX_CLASSES = 100  # classes shown; --json has all
MAX_LISTED = 20  # most classes whose rows are listed for each client


def list_(*, data_dir: Path | None = None, json: Json = False) -> None:
    """List data sets (and whether they are at hand), partitions and models.

    Parameters
    ----------
    data_dir
        default POMONA_DATA
    """
    from pomona.data import describe
    from pomona.models import MODELS
    from pomona.partition import RECIPES

    sets: list[dict[str, Any]] = [vars(entry) for entry in describe(data_dir)]
    recipes = [
        {"partition.name": name, "what": " ".join(str(recipe.__doc__).partition("\n\n")[0].split())}
        for name, recipe in sorted(RECIPES.items())
    ]
    respond(
        json,
        {"data": sets, "partitions": sorted(RECIPES), "models": sorted(MODELS)},
        of_records(sets, "Data sets (data.name)"),
        "",
        of_records(recipes, "Partitions"),
        "",
        "Models (model.name): " + ", ".join(sorted(MODELS)),
    )


def show(
    *words: str,
    data: str | None = None,
    partition: str | None = None,
    data_dir: Path | None = None,
    folder: Annotated[Path | None, Parameter(name="--out")] = None,
    save: Path | None = None,
    json: Json = False,
) -> None:
    """Show a scenario: sizes, labels per client, divergence from the federation, rows as the model
    will see them; nothing is trained.

    Parameters
    ----------
    words
        TOML files and key=value settings, for example clients=20 partition.beta=0.1
    data
        data set
    partition
        partition
    data_dir
        folder of data sets; default POMONA_DATA
    folder
        folder for pictures: labels, images with their masks
    save
        file to save the partition to, for partition.name=file
    """
    from pomona.core.files import writing

    config = config_of(words, *scenario_options(data, data_dir, partition))
    with activity(f"reading {config.data.name}"):
        scenario, source = _prepared(config)
    metadata = _about(scenario)
    written = _pictures(scenario, metadata, folder) if folder else []
    if save:
        with writing(save):
            scenario.partition.save(save)
        written.append(save)
    if json:
        emit({**_record(scenario, source, metadata), "written": written})
        return
    _print(scenario, source)
    if scenario.dataset.kind == "image" and not folder:
        stdout.print("pictures  add --out FOLDER for one image of each client, with its mask")
    for path in written:
        stdout.print(f"written  {path}", highlight=False, markup=False)


def _prepared(config: "Config") -> "tuple[Scenario, Dataset]":
    """Return the scenario, and its data as read, before they are encoded."""
    from pomona.data import read
    from pomona.scenario import Scenario

    sources: list[Dataset] = []

    def reader(settings: "DataSettings") -> "Dataset":
        sources.append(read(settings))
        return sources[0]

    scenario = Scenario.divided(config, reader)
    if scenario.targets != "segmentation" or "model" in config.model_fields_set:
        scenario.check()  # the default network has no masks as outputs
    return scenario, sources[0]


def _about(scenario: "Scenario") -> dict[str, Any]:
    """Return what a record says about a scenario; PyTorch is imported no earlier than this."""
    from pomona.scenario.description import about

    return about(scenario)


def _record(scenario: "Scenario", source: "Dataset", metadata: dict[str, Any]) -> dict[str, Any]:
    """Return what is printed, for programs."""
    from pomona.cli.data_preview import preview

    clients, rows = _clients(scenario, metadata), preview(scenario, source)
    measures = {key: [row.get(key) for row in clients] for key in ("emd", "effective_classes")}
    return {
        **metadata,
        **measures,
        "targets_by_part": _targets(scenario),
        "rows": [dict(zip(rows.header, row, strict=True)) for row in rows.rows],
        "resolution": _resolution(scenario),
        "notes": [note.text for note in scenario.notes],
    }


def _clients(scenario: "Scenario", metadata: dict[str, Any]) -> list[dict[str, Any]]:
    """Return each client's sizes and, where they apply, its events, group and distribution of
    labels.
    """
    from pomona.partition.divergence import effective_classes, emd, label_counts

    rows: list[dict[str, Any]] = []
    for i, (name, client) in enumerate(
        zip(metadata["clients"], scenario.partition.clients, strict=True)
    ):
        row: dict[str, Any] = {
            "client": name,
            **{split: metadata["sizes"][split][i] for split in SPLITS},
        }
        if metadata["edges"]:
            row["events_in_training"] = int(scenario.dataset.y[client.train, 1].sum())
        if metadata["groups"]:
            row["group"] = metadata["groups"][i]
        rows.append(row)
    if scenario.targets == "classes":
        counts = label_counts(scenario.partition, scenario.dataset)
        measures = zip(
            emd(counts).tolist(), effective_classes(counts).tolist(), counts, strict=True
        )
        for row, (distance, spread, own_counts) in zip(rows, measures, strict=True):
            row |= {"emd": distance, "effective_classes": spread}
            if len(own_counts) <= MAX_LISTED:
                row["rows_by_class"] = " ".join(map(str, own_counts))
    return rows


def show_data(
    config: "Config | None" = None, out: Path | str | None = None, **settings: Any
) -> None:
    """Print a run's clients, labels, first rows and oddities, as ``pomona data show`` does, also of
    data in memory. Nothing is trained.

    Args:
        config: every setting; or None, and keywords instead.
        out: folder for pictures: labels, and one image of each client with its mask.
        settings: as for ``pomona.run``.

    Warns:
        PomonaWarning: each note on the data, which is printed too.

    Raises:
        PomonaError: with the remedy, as ``pomona.run`` before it trains.

    >>> import numpy as np
    >>> from pomona.data import from_arrays
    >>> x, y = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 2
    >>> show_data(data=from_arrays(x, y, client=np.repeat(["Aachen", "Bergen"], 30)))
    arrays, natural, seed 0 ...
    """
    from pomona.config import Config

    scenario, source = _prepared(config or Config(**settings))
    _print(scenario, source)
    if out:
        _pictures(scenario, _about(scenario), Path(out))
    warner = CallerWarnings(sys._getframe(1))
    for note in scenario.notes:
        warner.on_note(note.text)


_LEGEND = {
    "emd": "emd: how far a client's shares of the classes are from all clients' together, in "
    "training rows; 0 (the same) to 2.",
    "effective_classes": "Effective classes: how many equally frequent classes are as diverse.",
    "rows_by_class": "Rows by class: training rows of class 0, 1, 2, ... as numbered below.",
}


def _print(scenario: "Scenario", source: "Dataset") -> None:
    """Print clients, targets, rows, notes and hashes."""
    from pomona.cli.data_preview import preview
    from pomona.tasks import TASKS

    rows, targets = _clients(scenario, _about(scenario)), _targets(scenario)
    divided = scenario.partition.recipe.get("name", "file")
    print_table(
        of_records(rows, f"{scenario.dataset.name}, {divided}, seed {scenario.config.seed}")
    )
    for name in [name for name in _LEGEND if rows and name in rows[0]]:
        stdout.print(_LEGEND[name], highlight=False, soft_wrap=True)
    stdout.print()
    suffix = f", the first {MAX_CLASSES} of {len(targets)}" if len(targets) > MAX_CLASSES else ""
    title = _TITLES.get(scenario.targets, f"Rows of each {TASKS[scenario.targets].output}")
    print_table(of_records(targets[:MAX_CLASSES], title + suffix))
    stdout.print()
    print_table(preview(scenario, source))
    if text := _resolution(scenario):
        stdout.print(text, highlight=False, soft_wrap=True)
    for note in scenario.notes:
        stdout.print(f"note: {note.text}", highlight=False, markup=False, soft_wrap=True)
    hashes = str(scenario.partition.recipe["fingerprint"])[:16], scenario.partition.sha256[:16]
    stdout.print(f"data {hashes[0]}, partition {hashes[1]}", highlight=False)


def _resolution(scenario: "Scenario") -> str:
    """Describe which gain in accuracy the test rows would show; empty for other metrics, and
    without two test rows at a client.
    """
    import numpy as np

    from pomona.metrics.metric import ACCURACY
    from pomona.metrics.sampling_error import of_right_answers
    from pomona.record.paired_gain import Gain
    from pomona.results.gain_presentation import resolution

    if scenario.choice.metric != ACCURACY or scenario.targets != "classes":
        return ""
    groups, tests = scenario.dataset.groups, [c.test for c in scenario.partition.clients]
    units = [len(np.unique(groups.number[rows])) if groups else len(rows) for rows in tests]
    error, margin = of_right_answers(units, DISAGREEMENT), scenario.config.verdict.margin
    n_rows = sum(map(len, tests))
    gain = Gain(0.0, None, None, sum(units), n_rows, error=error, margin=margin)
    sentence = resolution(ACCURACY, gain, 1)
    return sentence and (
        f"{sentence[:-1]}, if two models' answers differ on {DISAGREEMENT:.0%} of the rows "
        "(accuracy, mean over clients)."
    )


def _targets(scenario: "Scenario") -> list[dict[str, Any]]:
    """Return the names of classes, labels, targets or intervals; except for targets, also their
    rows in each split.

    For intervals, these are the rows with their event in it.
    """
    import numpy as np

    data, rows = scenario.dataset, _output_rows(scenario)
    if scenario.targets == "regression":
        return rows
    for split in SPLITS:
        y = data.y[np.concatenate([getattr(c, split) for c in scenario.partition.clients])]
        flags = scenario.task.learned(y, data)[:, 1] if data.edges else y
        counts = (
            np.bincount(y.reshape(-1), minlength=len(rows)) if data.classes else flags.sum(axis=0)
        )
        for row, count in zip(rows, counts, strict=True):
            row[split] = int(count)
    return rows


def _output_rows(scenario: "Scenario") -> list[dict[str, Any]]:
    """Number the classes, labels, targets or intervals."""
    from pomona.tasks import TASKS

    data, output = scenario.dataset, TASKS[scenario.targets].output
    intervals = tuple(f"to {edge:g}" for edge in data.edges)
    names = (
        data.classes
        or data.labels
        or intervals
        or tuple(f"{output} {k}" for k in range(data.n_outputs))
    )
    return [{"number": k, output: name} for k, name in enumerate(names)]


def _pictures(scenario: "Scenario", metadata: dict[str, Any], folder: Path) -> list[Path]:
    """Draw the clients' labels, and an image of each."""
    from pomona.core.files import writing
    from pomona.record.result import Result
    from pomona.results.figures.contact_sheet import contact_sheet
    from pomona.results.figures.partition import bubbles
    from pomona.results.figures.plot import drawing
    from pomona.results.run_numbers import runs

    prepared = runs([Result({"method": {"name": "none"}}, metadata, [], [], [], {})])
    with drawing(), writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pictures = [labels] if (labels := bubbles(prepared)) else []
        for picture in pictures:
            picture.save(folder)
        if sheet := contact_sheet(scenario):
            sheet.save(folder, ("png",))
            pictures.append(sheet)
    return [folder / f"{p.name}.png" for p in pictures]
