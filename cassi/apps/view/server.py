"""The web server: it listens on this machine only, and lets in who has the printed address."""

import hmac
import secrets
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from tornado.httputil import HTTPHeaders, HTTPServerRequest, parse_cookie
from tornado.routing import Matcher, Rule
from tornado.web import HTTPError, OutputTransform, RequestHandler, stream_request_body

from cassi.apps.view.uploads import Inbox

Pattern = tuple[str, type[RequestHandler], dict[str, Any]]
"""A path below that of the application, who answers, and what that needs."""
ADDRESS = "127.0.0.1"
_SLOWEST = 30
"""Seconds in which the headers of a request must have come."""
_ENTRY = """\
<!doctype html>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={path}">
"""


class Server:
    """The server of Bokeh and Panel, behind a guard of every request.

    The printed address, `/?code=…`, lets one browser in, once; then there is another code. The
    browser gets a cookie, and goes to the application, whose paths begin with a random part. Every
    request there needs the cookie, for files, reports and websockets too.

    Browsers send cookies to every port of a host, and so to servers of other users of this machine.
    They send this one to paths with the random part alone, which others do not know. Nor can others
    name such a path in a link or a frame. What the browser's history keeps, the path and a used
    code, opens nothing without the cookie.

    A request to another host name is refused: a foreign page can make a name of its own lead to
    this machine (DNS rebinding). Who is refused hears it when the headers have come: no body is
    kept. Slow senders are cut off.

    Args:
        page: makes the page of a tab.
        port: to listen on; 0 takes a free one.
        name: of the command.
        patterns: further handlers.
        largest: bytes of the body of a request.

    Attributes:
        guard: of every request.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        page: Callable[[], object],
        port: int = 0,
        name: str = "cassi-view",
        patterns: Iterable[Pattern] = (),
        largest: int = 2**12,
    ) -> None:
        from bokeh.server.views.ico_handler import IcoHandler
        from panel.io.server import get_server

        self.name, self.guard = name, Guard()
        self._server: Any = get_server(
            page,
            port=port,
            address=ADDRESS,
            prefix=self.guard.path,
            websocket_origin="localhost",  # the right ones below, where the port is known
            title=name,
            extra_patterns=list(patterns),
            http_server_kwargs={"max_body_size": largest, "idle_connection_timeout": _SLOWEST},
            start=False,
        )
        self.port: int = self._server.port
        self.guard.hosts = {f"{host}:{self.port}" for host in (ADDRESS, "localhost")}
        tornado = self._server._tornado
        tornado._websocket_origins = self.guard.hosts
        icon = (f"{self.guard.path}/favicon.ico", IcoHandler, {"app": tornado})
        tornado.add_handlers(".*", [icon])  # Bokeh's own has no prefix
        door = Rule(self.guard, Door, {"guard": self.guard, "name": name})
        tornado.default_router.rules.insert(0, door)
        tornado.add_transform(_Headers)
        self._server.start()
        self.io_loop = self._server.io_loop

    @property
    def entrance(self) -> str:
        """The address that lets the next browser in."""
        return f"http://{ADDRESS}:{self.port}/?code={self.guard.code}"

    def stop(self) -> None:
        """Listen no longer."""
        self._server.stop()


class Guard(Matcher):
    """Matches the requests that go no further than to the `Door`.

    Attributes:
        hosts: `name:port` that a request may be addressed to.
        path: random, in front of all paths of the application.
        cookie: random, what a browser that was let in sends.
        cookie_name: random too; no other server of this machine can set one of its name.
        code: lets the next browser in.
        entered: called when one came in.
    """

    def __init__(self) -> None:
        name, self.cookie, self.code = (secrets.token_urlsafe(24) for _ in range(3))
        self.path, self.cookie_name = f"/{name}", f"cassi-{name}"
        self.hosts: set[str] = set()
        self.entered: Callable[[], object] = lambda: None

    def match(self, request: HTTPServerRequest) -> dict[str, object] | None:
        """Return {} for a request to stop at the door, and None for one to let through."""
        sent = parse_cookie(request.headers.get("Cookie", "")).get(self.cookie_name, "")
        is_ours = request.host in self.hosts and _equal(sent, self.cookie)
        return None if is_ours else {}

    def redeem(self, request: HTTPServerRequest) -> bool:
        """Tell whether a request has the code in its address; then there is another code."""
        code = parse_qs(request.query).get("code", [""])[0]
        here = request.host in self.hosts and request.path == "/" and request.method == "GET"
        if not here or not _equal(code, self.code):
            return False
        self.code = secrets.token_urlsafe(24)
        self.entered()
        return True


def _equal(sent: str, secret: str) -> bool:
    return hmac.compare_digest(sent.encode(), secret.encode())


@stream_request_body  # it answers before a body comes
class Door(RequestHandler):
    """Answers a request without cookie: with a cookie if it has the code, or 403."""

    def initialize(self, guard: Guard, name: str) -> None:
        """Take the guard, and the name of the command."""
        self.guard, self.name = guard, name

    def prepare(self) -> None:
        """Answer a request of any method."""
        self.set_header("Connection", "close")
        if not self.guard.redeem(self.request):
            self.set_status(403)
            self.finish(f"403: open the address that {self.name} printed last; each counts once\n")
            return
        path = f"{self.guard.path}/"
        name, value = self.guard.cookie_name, self.guard.cookie
        self.set_cookie(name, value, httponly=True, samesite="Strict", path=path)
        # Not a redirect: from a page of another origin, such as a file, it would lack the cookie.
        self.finish(_ENTRY.format(path=path))

    def data_received(self, chunk: bytes) -> None:
        """Forget what comes."""


class _Headers(OutputTransform):
    """Gives every answer, Bokeh's too, what keeps it out of caches and of foreign pages."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Add the headers; a report has a policy of its own."""
        headers.setdefault("Content-Security-Policy", "frame-ancestors 'none'")
        headers.setdefault("X-Frame-Options", "DENY")
        headers["Cache-Control"] = "no-store"
        headers["Referrer-Policy"] = "no-referrer"
        headers["X-Content-Type-Options"] = "nosniff"
        return status_code, headers, chunk


class Report(RequestHandler):
    """Serves a report. Its page may run scripts and save files; it has no origin of its own."""

    def initialize(self, reports: dict[str, bytes]) -> None:
        """Take the reports, HTML by random key."""
        self.reports = reports

    def get(self, key: str) -> None:
        """Answer with the page; it opens in no foreign frame and cannot reach the application."""
        if key not in self.reports:
            raise HTTPError(404)
        policy = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
        self.set_header("Content-Security-Policy", policy)
        self.set_header("X-Frame-Options", "SAMEORIGIN")
        self.finish(self.reports[key])


class Upload(RequestHandler):
    """Takes a file that was dropped into the page."""

    def initialize(self, inboxes: dict[str, Inbox]) -> None:
        """Take the inboxes, by random key."""
        self.inboxes = inboxes

    def put(self, key: str, drop: str) -> None:
        """Keep the file, with the others that were dropped together with it."""
        # A page of another port of this machine counts as the same site.
        foreign = self.request.headers.get("Origin") != f"http://{self.request.host}"
        if foreign or key not in self.inboxes:
            raise HTTPError(403)
        name = self.get_query_argument("name", strip=False)
        try:
            self.inboxes[key].add(drop, name, self.request.body)
        except ValueError as error:
            self.set_status(413)
            self.finish(str(error))
        else:
            self.set_status(204)
