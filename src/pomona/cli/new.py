"""``pomona new``: a small project that runs at once, from the files in ``templates/``."""

import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from cyclopts import Parameter

from pomona.core.errors import ConfigError
from pomona.core.registry import require

Form = Literal["table", "images", "volumes", "flower", "pytorch"]
TEMPLATES = Path(__file__).parents[1] / "templates"
PLACEHOLDER = "my-project"
FOLDERS: dict[Form, tuple[str, ...]] = {
    "table": ("method", "settings", "table"),
    "images": ("method", "settings", "images"),
    "volumes": ("method", "settings", "volumes"),
    "flower": ("loaders", "flower"),
    "pytorch": ("method", "loaders", "pytorch"),
}
"""The folders of ``TEMPLATES`` with a project's files."""
NEEDS: dict[Form, str] = {"volumes": "nibabel"}


def new(
    name: str,
    *,
    form: Annotated[Form, Parameter(name="--from", help="what the project starts from")] = "table",
) -> None:
    """Write a project of your own: data, network, method, settings, notebook, tests.

    It runs at once, on data that it makes up, and every file is yours to change.

    Parameters
    ----------
    name
        the folder to make, here: lower-case letters, digits and -
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name):
        raise ConfigError(f"{name!r} is not a name; give up to 40 lower-case letters, digits and -")
    folder = Path(name)
    if folder.exists():
        raise ConfigError(f"{folder} already exists; give another name")
    if package := NEEDS.get(form):
        require(package, f"a project from {form}")
    with TemporaryDirectory(prefix=f".{name}-", dir=".") as temporary:
        project = Path(temporary) / name
        project.mkdir()
        for template in FOLDERS[form]:
            _copy(TEMPLATES / template, project, name)
        subprocess.run([sys.executable, "data.py"], cwd=project, check=True)
        project.rename(folder)
    print(f"written  {folder} (what each file is: {folder / 'README.md'})")
    print(f"next     cd {folder} && pomona run run.toml")


def _copy(template: Path, project: Path, name: str) -> None:
    """Copy a template's files with the project's name in place of the placeholder."""
    for path in sorted(template.glob("*.*")):
        text = path.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        (project / path.name).write_text(text, encoding="utf-8")
