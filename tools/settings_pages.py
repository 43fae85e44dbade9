"""Write ``docs/settings.md`` and ``docs/federation-files.md``, made of the settings' records.

python tools/settings_pages.py
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pomona.cli.settings import TABLES, Setting, owners, table_settings
from pomona_federation.cli.deploy import FILES, STUDY_OF_KIND, settings_of

DOCS = Path(__file__).parents[1] / "docs"


def of_runs() -> str:
    """Return the reference of a run's settings as Markdown."""
    parts = [
        "# Settings",
        "Made by `tools/settings_pages.py`. A run takes them from TOML files and "
        "from the command line as `key=value`; later ones win. `pomona run METHOD ... --dry-run` "
        "prints those in effect, and `pomona settings KEY` explains one; `pomona "
        "settings --schema` prints a JSON Schema of all, for editors and agents.",
    ]
    tables = {
        part.title: [*table_settings(part)]
        for part in TABLES
        if part.section not in ("partition", "method")
    }
    partitions = {
        owners(part)[0]: [*table_settings(part)] for part in TABLES if part.section == "partition"
    }
    parts += [table(title, found) for title, found in tables.items() if found]
    parts.append(table_by("partition", "Section `partition`", partitions))
    parts.append(
        "## Methods\n\nEach [method's page](methods/README.md) has its settings, `method.KEY`; "
        "`pomona settings METHOD` lists them with the values that they take."
    )
    return "\n\n".join(parts) + "\n"


def of_files() -> str:
    """Return the reference of a federation's files as Markdown."""
    parts = [
        "# Settings files of a federation",
        "Made by `tools/settings_pages.py`; `pomona deploy settings "
        "KEY` explains one key. `[run]` of `federation.toml` and `STUDY.toml` takes the [settings "
        "of a run](settings.md), except what silos set themselves; `[data]` and `[views.NAME]` of "
        "`silo.toml` take those of section `data`.",
        "A `federation.toml` may also have the keys of a study of kind `train`, except `decide`: "
        "that study comes with the kits.",
    ]
    kinds = {
        title.removeprefix(STUDY_OF_KIND): settings_of(record)
        for title, record in FILES.items()
        if title.startswith(STUDY_OF_KIND)
    }
    for title, record in FILES.items():
        if title == f"{STUDY_OF_KIND}train":
            parts.append(table_by("kind", "STUDY.toml, by kind of study", kinds))
        elif title.removeprefix(STUDY_OF_KIND) not in kinds:
            parts.append(table(title, settings_of(record)))
    return "\n\n".join(parts) + "\n"


def table(heading: str, found: Iterable[Setting]) -> str:
    """Return a heading and the settings below it, as Markdown."""
    rows = ((f"`{s.key}`", s.kind, _code(s.default), s.meaning) for s in found)
    return _grid(heading, ("key", "values", "default", "meaning"), rows)


def table_by(what: str, heading: str, found: Mapping[str, Iterable[Setting]]) -> str:
    """Return the settings of several owners as one Markdown table, in which a key that some share
    is one row.
    """
    names_of: defaultdict[Setting, list[str]] = defaultdict(list)
    for name, own in found.items():
        for s in own:
            names_of[replace(s, owner="")].append(name)
    rows = (
        (
            f"`{s.key}`",
            "all" if len(names) == len(found) else ", ".join(names),
            *(s.kind, _code(s.default), s.meaning),
        )
        for s, names in names_of.items()
    )
    return _grid(heading, ("key", what, "values", "default", "meaning"), rows)


def _grid(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join([f"## {heading}", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _code(default: str) -> str:
    return default if default in ("not set", "must be set") else f"`{default}`"


PAGES = {"settings.md": of_runs, "federation-files.md": of_files}

if __name__ == "__main__":
    for name, page in PAGES.items():
        (DOCS / name).write_text(page(), encoding="utf-8")
