"""``pomona settings``: the reference of all settings, from the code."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.cli.output import Json, emit, out
from pomona.cli.settings_reference import Setting, find, page
from pomona.cli.settings_reference import settings as every
from pomona.storage.atomic_io import writing


def settings(
    key: str | None = None,
    *,
    to: Annotated[Path | None, Parameter(name="--out", help="write the whole reference as Markdown")] = None,
    json: Json = False,
) -> None:
    """Explain the settings of a run.

    Parameters
    ----------
    key
        a key, a section, a method or a partition; all settings if not given
    """
    if to:
        with writing(to):
            to.write_text(page(), encoding="utf-8")
        print(to)
        return
    show(find(key, every()) if key else every(), json)


def show(found: Sequence[Setting], json: bool) -> None:
    """Print settings, each with its values, its default and its meaning."""
    if json:
        emit([asdict(setting) for setting in found])
        return
    for s in found:
        owner = f", {s.owner}" if s.owner else ""
        out.print(f"{s.key}  ({s.kind}; default {s.default}{owner})", markup=False, highlight=False)
        out.print(f"    {s.meaning}", markup=False, highlight=False)


def of_a_run() -> str:
    """Settings shown by ``pomona run --help``: those of every run."""
    common = [s for s in every() if "." not in s.key and not s.owner]
    rows = [
        f"- `{s.key}={s.default}`: {s.meaning}" if s.default != "not set" else f"- `{s.key}`: {s.meaning}"
        for s in common
    ]
    return "\n".join(
        [
            "Settings that every run has; `pomona settings` lists those of data, partitions, models and methods, and "
            "`pomona settings KEY` explains one.",
            "",
            *rows,
        ]
    )
