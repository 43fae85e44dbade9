"""The innermost ASGI layer before SuperLink: calls SuperLink's handlers of messages itself.

A message needs a dozen small requests. Each would pass eight layers of Flower's, a router and its
dependencies, which take most of its time. Here its sender is authenticated by the same functions,
and the same handler is called. A request that fails is given to SuperLink once more, which answers
with the error that its sender expects.
"""

from collections.abc import Callable
from typing import Any

from pomona_federation.server.gate import Application, Message, Receive, Scope, Send, replay

FLEET, RUNTIME = "/v1/fleet/", "/v1/runtime/"  # interfaces to silos, and to the ServerApp
# what each message needs, of either interface
HANDLERS = (
    "confirm_message_received",
    "pull_messages",
    "pull_object",
    "push_messages",
    "push_object",
)


class DirectHandlers:
    """ASGI middleware.

    Args:
        app: SuperLink.
    """

    def __init__(self, app: Application) -> None:
        from flwr.superlink.routers.fleet import router as fleet
        from flwr.superlink.servicer.runtime import runtime_handlers as runtime

        self._app = app
        self._handlers: dict[str, Callable[..., Any]] = {
            **{_path(FLEET, name): getattr(fleet, f"fleet_{name}") for name in HANDLERS},
            **{_path(RUNTIME, name): getattr(runtime, name) for name in (*HANDLERS, "get_nodes")},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request for one of the handlers; pass all others on."""
        from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
        from starlette.concurrency import run_in_threadpool
        from starlette.responses import Response

        if scope.get("path") not in self._handlers or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        request: list[Message] = [await receive()]
        while request[-1].get("more_body"):
            request.append(await receive())
        body = b"".join(message.get("body", b"") for message in request)
        try:
            answer = await run_in_threadpool(self._answer, scope, body)
        except Exception:  # SuperLink says what is wrong
            return await self._app(scope, replay(request, receive), send)
        return await Response(answer, media_type=PROTOBUF_MEDIA_TYPE)(scope, receive, send)

    def _answer(self, scope: Scope, content: bytes) -> bytes:
        """A handler's answer to an authenticated request. Raises any exception."""
        from flwr.supercore.constant import TASK_TOKEN_HEADER
        from flwr.supercore.dependencies.task import authenticate_task
        from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
        from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES
        from flwr.superlink.dependencies.linkstate import get_linkstate
        from flwr.superlink.routers.fleet.node_auth import authenticate_node
        from starlette.requests import Request

        path, request = scope["path"], Request(scope)
        if request.headers["content-type"] != PROTOBUF_MEDIA_TYPE:
            raise ValueError("not of Flower's client")
        body = PROTOBUF_REQUEST_TYPES["POST", path].FromString(content)
        arguments = {"request": body, "state": get_linkstate(request)}
        if path.startswith(FLEET):
            request.state.protobuf_request = body
            authenticate_node(request)
        else:
            token = request.headers[TASK_TOKEN_HEADER]
            arguments["task"] = authenticate_task(request, token, arguments["state"])
        answer: bytes = self._handlers[path](**arguments).SerializeToString()
        return answer


def _path(interface: str, handler: str) -> str:
    return interface + handler.replace("_", "-")
