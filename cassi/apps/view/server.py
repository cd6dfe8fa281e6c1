"""The web server: it listens on this machine only, and admits whoever has the printed address."""

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
"""Path below the path of the application, class of the handler, arguments of its `initialize`."""
HOST_ADDRESS = "127.0.0.1"
_MAX_HEADER_SECONDS = 30  # a client that needs longer for the headers of a request is cut off
_ENTRY_PAGE = """\
<!doctype html>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={path}">
"""


class Server:
    """The server of Bokeh and Panel, with a guard that checks every request.

    The printed address, `/?code=…`, admits one browser once; then a new code is drawn. The browser
    gets a cookie, and goes to the application, whose paths begin with a random part. Every request
    to the application needs the cookie, also for files, reports and websockets.

    Browsers send a cookie to every port of a host, and so to servers of other users of this
    machine. This cookie has a path with the random part, so browsers send it to no other path, and
    nobody else knows the path or can put it into a link or a frame. The browser's history keeps the
    path and a used code; neither opens anything without the cookie.

    A request to another host name is refused, because a foreign page can point a name of its own to
    this machine (DNS rebinding). A refusal is sent as soon as the headers have arrived, so that no
    body is kept in memory. Slow clients are cut off.

    Args:
        page: makes the page of a tab.
        port: to listen on; 0 takes a free one.
        name: name of the command.
        patterns: further handlers.
        max_body_bytes: largest body of a request.

    Attributes:
        guard: checks every request.

    Raises:
        OSError: the port is taken.
    """

    def __init__(
        self,
        page: Callable[[], object],
        port: int = 0,
        name: str = "cassi-view",
        patterns: Iterable[Pattern] = (),
        max_body_bytes: int = 2**12,
    ) -> None:
        from bokeh.server.views.ico_handler import IcoHandler
        from panel.io.server import get_server

        self.name, self.guard = name, Guard()
        self._server: Any = get_server(
            page,
            port=port,
            address=HOST_ADDRESS,
            prefix=self.guard.path,
            websocket_origin="localhost",  # replaced below, where the port is known
            title=name,
            extra_patterns=list(patterns),
            http_server_kwargs={
                "max_body_size": max_body_bytes,
                "idle_connection_timeout": _MAX_HEADER_SECONDS,
            },
            start=False,
        )
        self.port: int = self._server.port
        self.guard.hosts = {f"{host}:{self.port}" for host in (HOST_ADDRESS, "localhost")}
        # Bokeh wants the allowed origins before it has a port, and has no method to change them.
        tornado = self._server._tornado
        tornado._websocket_origins = self.guard.hosts
        icon = (f"{self.guard.path}/favicon.ico", IcoHandler, {"app": tornado})
        tornado.add_handlers(".*", [icon])  # Bokeh's own icon ignores the prefix
        entry_rule = Rule(self.guard, EntryHandler, {"guard": self.guard, "name": name})
        # The first rule that matches a request answers it, so the guard sees every request first.
        tornado.default_router.rules.insert(0, entry_rule)
        tornado.add_transform(_ResponseHeaders)
        self._server.start()
        self.io_loop = self._server.io_loop

    @property
    def entrance(self) -> str:
        """The address that admits the next browser."""
        return f"http://{HOST_ADDRESS}:{self.port}/?code={self.guard.code}"

    def stop(self) -> None:
        """Stop listening."""
        self._server.stop()


class Guard(Matcher):
    """Matches every request that the application must not see; `EntryHandler` answers it.

    Attributes:
        hosts: `name:port` pairs that a request may be addressed to.
        path: random beginning of all paths of the application.
        cookie: random value that an admitted browser sends.
        cookie_name: random name, so that no other server of this machine can set such a cookie.
        code: random value that admits the next browser.
        on_entry: called when a browser was admitted.
    """

    def __init__(self) -> None:
        random_path, self.cookie, self.code = (secrets.token_urlsafe(24) for _ in range(3))
        self.path, self.cookie_name = f"/{random_path}", f"cassi-{random_path}"
        self.hosts: set[str] = set()
        self.on_entry: Callable[[], object] = lambda: None

    def match(self, request: HTTPServerRequest) -> dict[str, object] | None:
        """Return {} for a request without the right cookie, and None for an admitted request."""
        cookie = parse_cookie(request.headers.get("Cookie", "")).get(self.cookie_name, "")
        is_ours = request.host in self.hosts and _is_equal(cookie, self.cookie)
        return None if is_ours else {}

    def redeem(self, request: HTTPServerRequest) -> bool:
        """Tell whether a request has the code in its address; if so, draw a new code."""
        code = parse_qs(request.query).get("code", [""])[0]
        is_entry_request = (
            request.host in self.hosts and request.path == "/" and request.method == "GET"
        )
        if not is_entry_request or not _is_equal(code, self.code):
            return False
        self.code = secrets.token_urlsafe(24)
        self.on_entry()
        return True


def _is_equal(value: str, secret: str) -> bool:
    # A plain comparison takes longer the more characters agree, which would betray the secret.
    return hmac.compare_digest(value.encode(), secret.encode())


@stream_request_body  # answers before the body arrives
class EntryHandler(RequestHandler):
    """Answers a request without the cookie: sets the cookie if the code is right, else 403."""

    def initialize(self, guard: Guard, name: str) -> None:
        """Take the guard, and the name of the command."""
        self.guard, self.name = guard, name

    def prepare(self) -> None:
        """Answer a request of any method."""
        self.set_header("Connection", "close")
        if not self.guard.redeem(self.request):
            self.set_status(403)
            self.finish(f"403: open the last address of {self.name}; each admits one browser\n")
            return
        path = f"{self.guard.path}/"
        name, value = self.guard.cookie_name, self.guard.cookie
        self.set_cookie(name, value, httponly=True, samesite="Strict", path=path)
        # The answer is a page and no redirect. A browser that comes from a page of another origin,
        # such as a file, would follow a redirect without the cookie.
        self.finish(_ENTRY_PAGE.format(path=path))

    def data_received(self, chunk: bytes) -> None:
        """Discard the body."""


class _ResponseHeaders(OutputTransform):
    """Adds headers to every answer that keep it out of caches and out of foreign pages."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        """Add the headers; `ReportHandler` sets a policy of its own."""
        headers.setdefault("Content-Security-Policy", "frame-ancestors 'none'")
        headers.setdefault("X-Frame-Options", "DENY")
        headers["Cache-Control"] = "no-store"
        headers["Referrer-Policy"] = "no-referrer"
        headers["X-Content-Type-Options"] = "nosniff"
        return status_code, headers, chunk


class ReportHandler(RequestHandler):
    """Serves a report. Its page may run scripts and save files, but has no origin.

    Without an origin the page cannot reach the application. A report may be a stranger's.
    """

    def initialize(self, reports: dict[str, bytes]) -> None:
        """Take the reports, HTML by random key."""
        self.reports = reports

    def get(self, key: str) -> None:
        """Answer with the page, which opens in a frame of the application only."""
        if key not in self.reports:
            raise HTTPError(404)
        policy = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
        self.set_header("Content-Security-Policy", policy)
        self.set_header("X-Frame-Options", "SAMEORIGIN")
        self.finish(self.reports[key])


class UploadHandler(RequestHandler):
    """Receives a file that was dropped into the page."""

    def initialize(self, inboxes: dict[str, Inbox]) -> None:
        """Take the inboxes, by random key."""
        self.inboxes = inboxes

    def put(self, key: str, drop: str) -> None:
        """Put the file into the inbox, with the others of the same drop."""
        # For the cookie, a page of another port of this machine counts as the same site. So the
        # origin is compared, which includes the port.
        is_foreign = self.request.headers.get("Origin") != f"http://{self.request.host}"
        if is_foreign or key not in self.inboxes:
            raise HTTPError(403)
        name = self.get_query_argument("name", strip=False)
        try:
            self.inboxes[key].add(drop, name, self.request.body)
        except ValueError as error:
            self.set_status(413)
            self.finish(str(error))
        else:
            self.set_status(204)
