"""The folder of a kit, an option of most commands."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from pomona.core.errors import ConfigError
from pomona_federation.installation.contents import role_of

ServerKit = Annotated[Path, Parameter(help="the server's kit")]
SiloKit = Annotated[Path, Parameter(help="the silo's kit")]
Kit = Annotated[
    Path | None,
    Parameter(name="--folder", help="the kit; default this folder if it is one, or kits/server"),
]
SERVER = Path("kits/server")
CURRENT_FOLDER = Path()


def kit_folder(folder: Path | None) -> Path:
    """The folder of a kit of either role, or the default one."""
    if folder is not None:
        return folder
    try:
        role_of(CURRENT_FOLDER)
    except ConfigError:
        return SERVER
    return CURRENT_FOLDER
