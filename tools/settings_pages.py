"""Write the site's pages of settings and of unused uplinks, from the code's records, below FOLDER.

python tools/settings_pages.py FOLDER
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from method_pages import write
from pomona.cli.settings import TABLES, Setting, SettingsTable, owners, table_settings
from pomona_federation.cli.file_settings import FILES, STUDY_OF_KIND, settings_of
from pomona_federation.unused_uplinks import REASONS


def of_runs() -> str:
    """Return the reference of a run's settings as Markdown."""
    blocks = [
        "# Settings",
        "Made from the code. A run takes them from TOML files and "
        "from the command line as `key=value`; later ones win. `pomona run METHOD ... --dry-run` "
        "prints those in effect, and `pomona settings KEY` explains one; `pomona "
        "settings --schema` prints a JSON Schema of all, for editors and agents.",
    ]
    tables = {
        title(group): [*table_settings(group)]
        for group in TABLES
        if group.section not in ("partition", "method")
    }
    partitions = {
        owners(group)[0]: [*table_settings(group)]
        for group in TABLES
        if group.section == "partition"
    }
    blocks += [table(title, settings) for title, settings in tables.items() if settings]
    blocks.append(table_by("partition", "Section `partition`", partitions))
    blocks.append(
        "## Methods\n\nEach [method's page](methods/README.md) has its settings, `method.KEY`; "
        "`pomona settings METHOD` lists them with the values that they take."
    )
    return "\n\n".join(blocks) + "\n"


def title(group: SettingsTable) -> str:
    """Return the heading of settings of a run."""
    if not group.section:
        return "Every run"
    section, owners_of_keys = f"Section `{group.section}`", group.owner.partition(" ")[2]
    if group.section == "data" and group.owner:
        record = str(group.record.__doc__).partition(".\n")[0].rstrip(".")
        record = record if record[1:2].isupper() else record[0].lower() + record[1:]
        return f"{section}, {record}: {group.applies}"
    return f"{section}: {owners_of_keys}" if owners_of_keys else section


def of_files() -> str:
    """Return the reference of a federation's files as Markdown."""
    blocks = [
        "# Settings files of a federation",
        "Made from the code; `pomona deploy settings "
        "KEY` explains one key. `[run]` of `federation.toml` and `STUDY.toml` takes the [settings "
        "of a run](settings.md), except what silos set themselves; `[data]` and `[views.NAME]` of "
        "`silo.toml` take those of section `data`.",
        "A `federation.toml` may also have the keys of a study of kind `train`, except `decide`: "
        "that study comes with the kits.",
    ]
    study_types = {
        title.removeprefix(STUDY_OF_KIND): settings_of(record)
        for title, record in FILES.items()
        if title.startswith(STUDY_OF_KIND)
    }
    for title, record in FILES.items():
        if title == f"{STUDY_OF_KIND}train":
            blocks.append(table_by("kind", "STUDY.toml, by kind of study", study_types))
        elif title.removeprefix(STUDY_OF_KIND) not in study_types:
            blocks.append(table(title, settings_of(record)))
    return "\n\n".join(blocks) + "\n"


def of_reasons() -> str:
    """Return the reasons for which an uplink is not used as Markdown."""
    rows = [(f"`{reason.value}`", *explanation) for reason, explanation in REASONS.items()]
    blocks = [
        "# Why a silo's uplink was not used",
        "Made from the code. The server's audit log has one line `unused` with the reason; "
        "`pomona server status` shows the last one of each silo, `pomona server why SILO` all.",
        _grid("Reasons", ("reason", "stage", "what has happened", "what to do"), rows),
    ]
    return "\n\n".join(blocks) + "\n"


def table(heading: str, settings: Iterable[Setting]) -> str:
    """Return a heading and the settings below it, as Markdown."""
    rows = ((f"`{s.key}`", s.kind, _code(s.default), s.meaning) for s in settings)
    return _grid(heading, ("key", "values", "default", "meaning"), rows)


def table_by(column: str, heading: str, settings_by_name: Mapping[str, Iterable[Setting]]) -> str:
    """Return the settings of several owners as one Markdown table, in which a key that some share
    is one row.
    """
    names_of: defaultdict[Setting, list[str]] = defaultdict(list)
    for name, settings in settings_by_name.items():
        for s in settings:
            names_of[replace(s, owner="")].append(name)
    rows = (
        (
            f"`{s.key}`",
            "all" if len(names) == len(settings_by_name) else ", ".join(names),
            *(s.kind, _code(s.default), s.meaning),
        )
        for s, names in names_of.items()
    )
    return _grid(heading, ("key", column, "values", "default", "meaning"), rows)


def _grid(heading: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join([f"## {heading}", "", *(f"| {' | '.join(line)} |" for line in lines)])


def _code(default: str) -> str:
    return default if default in ("not set", "must be set") else f"`{default}`"


def pages() -> dict[str, str]:
    """Return Markdown by path below docs/."""
    return {
        "settings.md": of_runs(),
        "federation-files.md": of_files(),
        "errors/unused-uplinks.md": of_reasons(),
    }


if __name__ == "__main__":
    write(pages(), Path(sys.argv[1]))
