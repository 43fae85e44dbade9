"""The process of a server's SuperLink: Flower's, behind the gate, with the status page if
``server.toml`` asks for it.
"""

from pathlib import Path

from pomona.core.errors import ConfigError
from pomona_federation.agreement import Federation
from pomona_federation.server.gate import Application
from pomona_federation.server.settings import ServerFile
from pomona_federation.server.superlink import run


def status_page(folder: Path, federation: Federation) -> Application | None:
    """The status page, if ``server.toml`` asks for it; an invalid file is only logged."""
    try:
        if not ServerFile.load(folder, federation).page:
            return None
    except ConfigError as fault:
        print(f"WARNING : no status page: {fault}", flush=True)  # noqa: T201 - the process's log
        return None
    from pomona_federation.monitoring.status_page import StatusPage, status_html

    return StatusPage(folder, status_html(folder))


def main() -> None:
    """Run SuperLink with the command line's kit."""
    run(status_page)


if __name__ == "__main__":
    main()
