"""Requests whose handlers are called directly get the answers of SuperLink's own layers."""

import asyncio
from base64 import b64encode

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import GetNodesRequest
from flwr.supercore.constant import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    TASK_TOKEN_HEADER,
)
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import sign_message
from flwr.superlink.main import create_app

from pomona_federation.server.direct_handlers import DirectHandlers

pytestmark = pytest.mark.long
PULL, OBJECT, NODES = "/v1/fleet/pull-messages", "/v1/fleet/pull-object", "/v1/runtime/get-nodes"
KEY = ec.generate_private_key(ec.SECP384R1())


class Link:
    """A SuperLink in memory that a node has connected to; ``reached``: the paths of requests that
    the layer has passed on.
    """

    def __init__(self):
        self.app, self.reached = create_app(), []
        self.layer = DirectHandlers(self._reached)
        pem = KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        self.public = b64encode(pem)
        self.ask("/v1/fleet/register-node", RegisterNodeFleetRequest(public_key=pem))
        activation = ActivateNodeRequest(public_key=pem, heartbeat_interval=60)
        (_, _, body) = self.ask("/v1/fleet/activate-node", activation)
        self.node = Node(node_id=ActivateNodeResponse.FromString(body).node_id)
        self.reached.clear()

    async def _reached(self, scope, receive, send):
        self.reached.append(scope["path"])
        await self.app(scope, receive, send)

    def signed(self):
        """Headers that a node of the key signs."""
        time = now().isoformat().encode()
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: self.public,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(KEY, time)),
            TIMESTAMP_HEADER: time,
        }

    def ask(self, path, body, headers=None, layer=None, method="POST"):
        """Status, type and body of an answer."""
        content, messages = body if isinstance(body, bytes) else body.SerializeToString(), []
        chunks = [content[:3], content[3:]]
        fields = {"content-type": b"application/protobuf", **(headers or self.signed())}

        async def receive():
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}

        async def send(message):
            messages.append(message)

        scope = {"type": "http", "path": path, "method": method, "query_string": b""}
        scope |= {"app": self.app}
        scope |= {"http_version": "1.1", "scheme": "http", "server": ("a", 1), "client": ("b", 2)}
        scope |= {"headers": [(name.lower().encode(), value) for name, value in fields.items()]}
        asyncio.run((layer or self.layer)(scope, receive, send))
        types = dict(messages[0]["headers"])
        return (
            messages[0]["status"],
            types.get(b"content-type"),
            b"".join(m.get("body", b"") for m in messages),
        )


@pytest.fixture
def link():
    return Link()


def requests(link):
    """Requests by what they are: path, body, headers besides, and the status of the answer."""
    pull = PullMessagesRequest(node=link.node)
    stranger = PullMessagesRequest(node=Node(node_id=7))
    late = {**link.signed(), TIMESTAMP_HEADER: b"2020-01-01T00:00:00+00:00"}
    return {
        "of the node": (PULL, pull, {}, 200),
        "of another node": (PULL, stranger, {}, 401),
        "not signed": (PULL, pull, {"accept": b"*/*"}, 401),
        "signed at another time": (PULL, pull, late, 401),
        "not a message": (PULL, b"\xff\xff\xff", {}, None),
        "of another type": (PULL, pull, {**link.signed(), "content-type": b"text/html"}, None),
        "for an object of no run": (OBJECT, PullObjectRequest(node=link.node, run_id=3), {}, None),
        "of the app without a token": (NODES, GetNodesRequest(), {}, 401),
        "of the app with a wrong token": (NODES, GetNodesRequest(), {TASK_TOKEN_HEADER: b"x"}, 401),
    }


def test_an_answer_is_that_of_superlinks_layers(link):
    for name, (path, body, headers, status) in requests(link).items():
        link.reached.clear()
        answer = link.ask(path, body, headers)
        assert link.reached == ([] if status == 200 else [path]), name
        assert answer == link.ask(path, body, headers, link.app), name
        assert answer[0] == status or (status is None and answer[0] >= 400), name


def test_other_requests_are_passed_on(link):
    assert link.ask(PULL, b"", method="GET")[0] == 405
    assert link.ask("/health", b"", method="GET")[0] == 200
    assert link.reached == [PULL, "/health"]
