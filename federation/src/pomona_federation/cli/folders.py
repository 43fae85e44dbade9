"""The folder of a kit, an option of most commands."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

ServerKit = Annotated[Path, Parameter(help="the server's kit")]
SiloKit = Annotated[Path, Parameter(help="the silo's kit")]
SERVER = Path("kits/server")
CURRENT_FOLDER = Path()
