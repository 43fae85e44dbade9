"""This silo's standing at the server (member, revoked or unknown), asked with a request signed by its key.

The server's certificate authenticates the answer. It affects only the connection: a revoked silo stops connecting after
several identical answers, and its administrator can make it try again.
"""

from base64 import b64encode
from pathlib import Path
from typing import Literal, get_args

from pomona.core.errors import ConfigError, ProtocolError
from pomona.core.files import content
from pomona_federation.silo.http_client import ServerRoute
from pomona_federation.silo.watchdog import request

PATH = "/v1/fleet/pomona/standing"
REFUSALS = 5  # consecutive "revoked" answers, each after a refused connection, until a silo stops
Membership = Literal["member", "revoked", "unknown", "unsaid"]


def ask_membership(way: ServerRoute, key: Path) -> Membership:
    """Ask the server; "unsaid" if it does not answer, gives no known answer, or has no keys.

    Args:
        way: route to the server.
        key: this silo's private key, in OpenSSH's format.
    """
    if way.ca is None:
        return "unsaid"
    try:
        text = request(way, PATH, signed(key)).text.decode("ascii", "replace").strip()
    except (ProtocolError, ConfigError, OSError, ValueError):
        return "unsaid"
    return next((word for word in get_args(Membership) if word == text), "unsaid")


def signed(key: Path) -> dict[str, str]:
    """Headers that authenticate a request, as Flower's nodes make them. Raises OSError or ValueError for a bad key."""
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key
    from flwr.common.constant import TIMESTAMP_HEADER
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
    from flwr.supercore.date import now
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

    own = load_ssh_private_key(content(key), None)
    if not isinstance(own, EllipticCurvePrivateKey):
        raise ProtocolError(f"{key} is not a key of this federation; put the one there that the kit came with")
    when = now().isoformat()
    return {
        FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(own.public_key())).decode(),
        FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(own, when.encode())).decode(),
        TIMESTAMP_HEADER: when,
    }


def explained(standing: Membership, reason: str, times: int) -> str:
    """Why a node was refused; ``reason`` from its log, if the server has not reported this silo's standing.

    Args:
        standing: from the server.
        reason: of the refusal.
        times: number of consecutive identical answers from the server.
    """
    match standing:
        case "revoked":
            return (
                f"the server says that this silo was revoked ({times} of {REFUSALS} times); ask its administrator, "
                f"and if it was a mistake, `pomona silo start` tries again"
            )
        case "unknown":
            return (
                "the server does not know this silo's key, or the clocks differ: `pomona silo check` compares them; if "
                "they agree, ask the server's administrator whether this silo was added"
            )
        case "member":
            return (
                "this silo is a member; the server still counts its last connection, for up to a minute, or was just "
                "starting; it tries again by itself"
            )
        case _:
            return reason
