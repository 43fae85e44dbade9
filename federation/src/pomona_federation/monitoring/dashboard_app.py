"""The dashboard's application: pages of studies, protected by a token."""

import secrets
from importlib.resources import files
from typing import Any

from pomona.core.errors import ConfigError, PomonaError
from pomona_federation.monitoring.dashboard import page, trouble
from pomona_federation.monitoring.loopback import application
from pomona_federation.monitoring.watched_server import WatchedServer

SHEETS = (("pomona.results.web", "page.css"), ("pomona_federation.monitoring", "dashboard.css"))
DENIED = "Open the address that `pomona server dashboard` has printed; it holds the token.\n"


def new_token() -> str:
    """A token of 256 random bits."""
    return secrets.token_urlsafe(32)


def dashboard_app(server: WatchedServer, token: str) -> Any:
    """Build the application.

    ``/?token=TOKEN`` sets a cookie and redirects to ``/``, so that the token leaves the address bar; everything else
    requires that cookie, or the token as ``Authorization: Bearer``.

    Args:
        server: the watched server; the study that runs, or ran last, is at ``/``, each study at ``/study/NAME``.
        token: compared in constant time.
    """
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import HTMLResponse, Response
    from starlette.routing import Route

    sheet = "".join((files(package) / name).read_text(encoding="utf-8") for package, name in SHEETS)

    def shown(request: Request) -> Response:
        try:
            study = server.study(request.path_params.get("name"))
            return HTMLResponse(page(study, "still" not in request.query_params))
        except PomonaError as fault:
            unknown = isinstance(fault, ConfigError) and "name" in request.path_params
            return HTMLResponse(trouble(fault.line()), 404 if unknown else 503)

    def style(_: Request) -> Response:
        return Response(sheet, media_type="text/css")

    routes = [Route("/", shown), Route("/study/{name:path}", shown), Route("/page.css", style)]
    return application(routes, [Middleware(Admitted, token=token)])


class Admitted:
    """ASGI middleware that admits requests with the token and hands it to the browser as a cookie."""

    def __init__(self, app: Any, token: str) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass a request on, answer the first one with the cookie, or refuse it."""
        from starlette.requests import Request
        from starlette.responses import PlainTextResponse, RedirectResponse

        request = Request(scope)
        # Cookies ignore ports: the port is in the name, so that two dashboards on a machine do not sign each other out.
        name = f"pomona-dashboard-{(request.url.port or 80)}"
        answer: Any
        if self._is(request.query_params.get("token", "")):
            # A path that begins with two slashes, or is a whole address, would redirect elsewhere.
            answer = RedirectResponse(f"/{scope['path'].lstrip('/')}", 303)
            answer.set_cookie(name, self.token, httponly=True, samesite="strict", path="/")
        elif self._is(request.cookies.get(name, "")) or self._is(_bearer(request.headers.get("authorization", ""))):
            answer = self.app
        else:
            answer = PlainTextResponse(DENIED, 401, {"WWW-Authenticate": "Bearer"})
        await answer(scope, receive, send)

    def _is(self, said: str) -> bool:
        return secrets.compare_digest(said.encode(), self.token.encode())


def _bearer(header: str) -> str:
    kind, _, token = header.partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""
