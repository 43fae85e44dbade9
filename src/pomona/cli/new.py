"""``pomona new``: a small project that runs at once, from the files in ``templates/``."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal, NamedTuple

from cyclopts import Parameter

from pomona.core.errors import ConfigError, with_extra

Form = Literal["table", "images", "volumes", "flower", "pytorch"]
TEMPLATES = Path(__file__).parents[1] / "templates"
PLACEHOLDER = "my-project"


class Project(NamedTuple):
    """A form of a project.

    Attributes:
        folders: of ``TEMPLATES`` with its files.
        command: that runs it.
        package: that it needs besides Pomona's own dependencies.
        remedy: where that is missing.
    """

    folders: tuple[str, ...]
    command: str = "pomona run run.toml"
    package: str = ""
    remedy: str = ""


FORMS: dict[Form, Project] = {
    "table": Project(("method", "settings", "table")),
    "images": Project(("method", "settings", "images")),
    "volumes": Project(
        ("method", "settings", "volumes"), package="nibabel", remedy=with_extra("images")
    ),
    "flower": Project(
        ("loaders", "flower"),
        "flwr run . --stream",
        "pomona_federation",
        "pip install pomona-federation",
    ),
    "pytorch": Project(("method", "loaders", "pytorch"), "python train.py"),
}


def new(name: str, *, form: Annotated[Form, Parameter(name="--from")] = "table") -> None:
    """Write a project of your own: data, network, method, settings, notebook, tests.

    It runs at once, on data that it makes up, and every file is yours to change.

    Parameters
    ----------
    name
        the folder to make, here: lower-case letters, digits and -
    form
        what the project starts from
    """
    if not re.fullmatch(r"[a-z][a-z0-9-]{0,39}", name):
        raise ConfigError(f"{name!r} is not a name; give up to 40 lower-case letters, digits and -")
    folder = Path(name)
    if folder.exists():
        raise ConfigError(f"{folder} already exists; give another name")
    project = FORMS[form]
    if project.package and find_spec(project.package) is None:
        raise ConfigError(f"a project from {form} needs {project.package}; {project.remedy}")
    with TemporaryDirectory(prefix=f".{name}-", dir=".") as temporary:
        written = Path(temporary) / name
        written.mkdir()
        for template in project.folders:
            _copy(TEMPLATES / template, written, name)
        subprocess.run([sys.executable, "data.py"], cwd=written, check=True)
        written.rename(folder)
    print(f"written  {folder} (what each file is: {folder / 'README.md'})")
    print(f"next     cd {folder} && {project.command}")


def _copy(template: Path, folder: Path, name: str) -> None:
    """Copy a template's files with the project's name in place of the placeholder."""
    for path in sorted(template.glob("*.*")):
        text = path.read_text(encoding="utf-8").replace(PLACEHOLDER, name)
        (folder / path.name).write_text(text, encoding="utf-8")
