"""Flower's SuperLink behind a gate: ``python -m pomona.deploy.server.superlink KIT`` and flower-superlink's arguments.

SuperLink serves three interfaces on one port. Silos need the fleet's, whose requests they sign with their keys. The
control interface is not authenticated: whoever reaches it can submit code that runs on the server. Nor is the runtime's
first request. So everything but the fleet's interface and the health check is answered only to this machine itself.

A reverse proxy on the same machine must forward ``/v1/fleet`` and nothing else; a request that says that it was
forwarded is never taken for one of this machine's own.
"""

import os
import resource
import sys
from functools import partial
from pathlib import Path

from pomona.deploy.agreement import Address, Federation
from pomona.deploy.processes import QUIET, die_with_parent
from pomona.deploy.server.grpc_gate import Gate, RequestLimits
from pomona.deploy.server.request_auth import RequestAuth, anybody, impatient
from pomona.deploy.server.upload_limit import announced


def command(folder: Path, federation: Federation) -> list[str]:
    """The command line of a server kit's SuperLink."""
    bind = Address.parse(federation.bind)
    certs = folder / "certs"
    keys = ("--ssl-ca-certfile", "ca.crt"), ("--ssl-certfile", "server.crt"), ("--ssl-keyfile", "server.key")
    secured = [word for option, name in keys for word in (option, str(certs / name))]
    return [
        *(sys.executable, "-m", "pomona.deploy.server.superlink", str(folder)),
        *("--host", bind.host, "--port", str(bind.port)),
        *("--database", str(folder / "run" / "superlink.db")),
        "--disable-runtime-dependency-installation",
        *(["--insecure"] if federation.insecure else ["--enable-supernode-auth", *secured]),
    ]


def main() -> None:
    """Run Flower's SuperLink behind the gate."""
    os.environ.update(QUIET)  # Flower reads it when it is imported
    die_with_parent()
    folder = Path(sys.argv.pop(1))
    federation = Federation.read(folder / "federation.toml")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # connections that say nothing take a file each

    import uvicorn
    from flwr.superlink import extensions
    from flwr.superlink.cli import flower_superlink
    from starlette.middleware import Middleware
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    known = anybody if federation.insecure else RequestAuth(folder)
    limits = RequestLimits(at_once=RequestLimits.at_once * (federation.places if federation.insecure else 1))
    gate = Middleware(Gate, known=known, uplink=partial(announced, folder / "run"), limits=limits)
    others = extensions.get_middleware
    extensions.get_middleware = lambda: (gate, *others())
    uvicorn.run = partial(uvicorn.run, http=impatient(AutoHTTPProtocol))
    flower_superlink()


if __name__ == "__main__":
    main()
