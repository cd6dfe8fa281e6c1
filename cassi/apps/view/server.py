"""The web server: it listens on this machine only, and lets in who has the printed address."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest, parse_cookie
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.platform.asyncio import BaseAsyncIOLoop
from tornado.routing import Matcher, Router, Rule
from tornado.web import (
    Application,
    HTTPError,
    OutputTransform,
    RequestHandler,
    stream_request_body,
)

from cassi.apps.view.uploads import LARGEST, Inbox

ADDRESS = "127.0.0.1"
_LARGEST = 2**12
"""Bytes of the body of a request that is no upload."""
_LONGEST_UPLOAD = 24 * 3600
"""Seconds."""
_SLOWEST = 30
"""Seconds in which the headers of a request, and then its body, must have come."""
_ENTRY = """\
<!doctype html>
<link rel="icon" href="data:,">
<meta http-equiv="refresh" content="0; url={path}">
"""
_WAITING = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<style>{style}</style>
<header><h1>{name}</h1></header>
<main><section aria-label="Start"><p class="lead" role="status">Starting …</p></section></main>
<script>fetch("ready").then(() => location.reload())</script>
</html>
"""


class Server:
    """A server that listens at once, and shows a page that waits until the application is there.

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
        port: to listen on; 0 takes a free one.
        name: of the command.

    Attributes:
        guard: of every request.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0, name: str = "cassi-view") -> None:
        sockets = bind_sockets(port, ADDRESS)
        loop = IOLoop.current()
        assert isinstance(loop, BaseAsyncIOLoop)
        self.io_loop, self.name = loop, name
        self.port: int = sockets[0].getsockname()[1]
        self._hosts = {f"{host}:{self.port}" for host in (ADDRESS, "localhost")}
        self.guard = Guard(self._hosts)
        self._ready = asyncio.Event()
        self._door = Rule(self.guard, Door, {"guard": self.guard, "name": name})
        waiting = {"ready": self._ready, "name": name}
        rules: list[Any] = [self._door, (f"{self.guard.path}/(ready)?", Waiting, waiting)]
        self._router = _Switch(Application(rules, transforms=[_Headers]))
        self._http = HTTPServer(
            self._router,
            max_body_size=_LARGEST,
            idle_connection_timeout=_SLOWEST,
            body_timeout=_SLOWEST,
        )
        self._http.add_sockets(sockets)
        self._application: Any = None

    @property
    def entrance(self) -> str:
        """The address that lets the next browser in."""
        return f"http://{ADDRESS}:{self.port}/?code={self.guard.code}"

    def open(
        self,
        page: Callable[[], object],
        reports: Mapping[str, bytes] = MappingProxyType({}),
        inboxes: Mapping[str, Inbox] = MappingProxyType({}),
    ) -> None:
        """Show an application.

        Args:
            page: makes the page of a tab.
            reports: HTML by random key, served at `report/KEY`.
            inboxes: for uploads by random key, which come as `PUT upload/KEY/DROP?name=…`.
        """
        from bokeh.server.views.ico_handler import IcoHandler
        from panel.io.server import get_server

        server: Any = get_server(
            page,
            address=ADDRESS,
            prefix=self.guard.path,
            websocket_origin="localhost",  # the right ones below
            title=self.name,
            extra_patterns=[
                ("/report/([A-Za-z0-9_-]+)", Report, {"reports": reports}),
                ("/upload/([A-Za-z0-9_-]+)/([0-9]+)", Upload, {"inboxes": inboxes}),
            ],
            start=False,
        )
        server._http.stop()  # its requests come by the server that listens already
        server._tornado._websocket_origins.clear()
        server._tornado._websocket_origins.update(self._hosts)
        icon = (f"{self.guard.path}/favicon.ico", IcoHandler, {"app": server._tornado})
        server._tornado.add_handlers(".*", [icon])  # Bokeh's own has no prefix
        server._tornado.default_router.rules.insert(0, self._door)
        server._tornado.add_transform(_Headers)
        server.start()
        self._application = server
        self._router.application = server._tornado
        self._ready.set()

    def stop(self) -> None:
        """Listen no longer."""
        self._http.stop()
        if self._application is not None:
            self._application.stop()


class _Switch(Router):
    """Asks the present application when a request has come; a connection may be older."""

    def __init__(self, application: Any) -> None:
        self.application = application

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        """Return who answers."""
        return self.application.find_handler(request, **kwargs)


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


class Waiting(RequestHandler):
    """The page that waits for the application, and what tells it that it is there."""

    def initialize(self, ready: asyncio.Event, name: str) -> None:
        """Take the event and the name of the command."""
        self.ready, self.name = ready, name

    async def get(self, asked: str | None) -> None:
        """Answer with the page; or, when the application is there, with nothing."""
        if asked:
            await self.ready.wait()
            self.set_status(204)
            return
        style = Path(__file__).with_name("pages").joinpath("page.html").read_text("utf-8")
        style = style.partition("<style>")[2].partition("</style>")[0]
        self.finish(_WAITING.format(name=self.name, style=style))


class Report(RequestHandler):
    """Serves a report. Its page may run scripts and save files; it has no origin of its own."""

    def initialize(self, reports: Mapping[str, bytes]) -> None:
        """Take the reports."""
        self.reports = reports

    def set_default_headers(self) -> None:
        """Forbid frames in foreign pages, and access to the application."""
        policy = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
        self.set_header("Content-Security-Policy", policy)
        self.set_header("X-Frame-Options", "SAMEORIGIN")

    def get(self, key: str) -> None:
        """Answer with the page."""
        if key not in self.reports:
            raise HTTPError(404)
        self.finish(self.reports[key])


@stream_request_body  # it is written to the disk as it comes
class Upload(RequestHandler):
    """Takes a file that was dropped into the page."""

    _end: object = None
    """What closes the connection, where it waits for more."""

    def initialize(self, inboxes: Mapping[str, Inbox]) -> None:
        """Take the inboxes."""
        self.inboxes = inboxes

    def prepare(self) -> None:
        """Look at the headers, and make room for the file."""
        key, drop = self.path_args
        length = self.request.headers.get("Content-Length", "")
        # A page of another port of this machine counts as the same site.
        foreign = self.request.headers.get("Origin") != f"http://{self.request.host}"
        if foreign or key not in self.inboxes or not length.isdecimal():
            raise HTTPError(403)
        connection: Any = self.request.connection
        connection.set_max_body_size(LARGEST)
        connection.set_body_timeout(_LONGEST_UPLOAD)
        self._loop = IOLoop.current()
        self._wait()
        name = self.get_query_argument("name", strip=False)
        try:
            self._file = self.inboxes[key].begin(drop, name, int(length))
        except (OSError, ValueError) as error:
            self._refuse(error)

    def data_received(self, chunk: bytes) -> None:
        """Write what has come."""
        self._wait()
        try:
            self._file.write(chunk)
        except (OSError, ValueError) as error:  # the disk is full, or other files were dropped
            self._refuse(error)

    def put(self, key: str, drop: str) -> None:
        """Answer that all has come."""
        self.set_status(204)

    def on_finish(self) -> None:
        """Wait no longer."""
        self._rest()

    def on_connection_close(self) -> None:
        """Wait no longer."""
        self._rest()
        super().on_connection_close()

    def _wait(self) -> None:
        """Close the connection unless more comes in time."""
        self._rest()
        connection: Any = self.request.connection
        self._end = self._loop.call_later(_SLOWEST, connection.close)

    def _rest(self) -> None:
        if self._end is not None:
            self._loop.remove_timeout(self._end)

    def _refuse(self, error: Exception) -> None:
        from cassi.apps.view.jobs import explain

        self.set_status(413 if isinstance(error, ValueError) else 507)
        self.finish(explain(error))


class Guard(Matcher):
    """Matches the requests that go no further than to the `Door`.

    Args:
        hosts: `name:port` that a request may be addressed to.

    Attributes:
        path: random, in front of all paths of the application.
        cookie: random, what a browser that was let in sends.
        cookie_name: random too; no other server of this machine can set one of its name.
        code: lets the next browser in.
        entered: called when one came in.
    """

    def __init__(self, hosts: set[str]) -> None:
        self.hosts = hosts
        name, self.cookie, self.code = (secrets.token_urlsafe(24) for _ in range(3))
        self.path, self.cookie_name = f"/{name}", f"cassi-{name}"
        self.entered: Callable[[], object] = lambda: None

    def match(self, request: HTTPServerRequest) -> dict[str, object] | None:
        """Return {} for a request to stop at the door, and None for one to let through."""
        sent = parse_cookie(request.headers.get("Cookie", "")).get(self.cookie_name, "")
        known = request.host in self.hosts and _equal(sent, self.cookie)
        return None if known else {}

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
        if not self.guard.redeem(self.request):
            self.set_status(403)
            self.set_header("Connection", "close")
            self.finish(f"403: open the address that {self.name} printed last; each counts once\n")
            return
        path = f"{self.guard.path}/"
        name, value = self.guard.cookie_name, self.guard.cookie
        self.set_cookie(name, value, httponly=True, samesite="Strict", path=path)
        # Not a redirect: from a page of another origin, such as a file, it would lack the cookie.
        self.finish(_ENTRY.format(path=path))

    def data_received(self, chunk: bytes) -> None:
        """Forget what comes."""
