"""The web server: it listens on this machine only and asks for a token."""

import asyncio
import hmac
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.ioloop import IOLoop
from tornado.netutil import bind_sockets
from tornado.routing import Matcher, Router, Rule
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from cassi.apps.view.one_time_link import OneTimeLink
from cassi.apps.view.uploads import LARGEST, Inbox

ADDRESS = "127.0.0.1"
ENTER = "/enter"
"""Where a one-time link sends its code."""
_LARGEST = 2**12
"""Bytes of the body of a request that is no upload."""
_LONGEST_UPLOAD = 24 * 3600
"""Seconds."""
_SLOWEST = 30
"""Seconds in which the headers of a request, and then its body, must have come."""
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
<script>fetch("/ready").then(() => location.reload())</script>
</html>
"""


class Server:
    """A server that listens at once, and shows a page that waits until the application is there.

    The first request has the token in its address, `/?token=…`, and gets a cookie. Every other
    request needs the cookie, for files, reports and websockets too. A request to another host name
    is refused: a foreign page can make a name of its own lead to this machine (DNS rebinding).

    Who is refused hears it when the headers have come: no body is kept. Slow senders are cut off.

    Args:
        port: to listen on; 0 takes a free one.
        name: of the command.

    Attributes:
        entrance: the address with the token.
        link_address: that of one-time links.
        guard: of every request.

    Raises:
        OSError: the port is taken.
    """

    def __init__(self, port: int = 0, name: str = "cassi-view") -> None:
        sockets = bind_sockets(port, ADDRESS)
        self.io_loop, self.name = IOLoop.current(), name
        self.port: int = sockets[0].getsockname()[1]
        self._hosts = {f"{host}:{self.port}" for host in (ADDRESS, "localhost")}
        token = secrets.token_urlsafe(24)
        self.guard = Guard(token, self._hosts, f"{name}-{self.port}")
        address = f"http://{ADDRESS}:{self.port}"
        self.entrance, self.link_address = f"{address}/?token={token}", f"{address}{ENTER}"
        self._ready = asyncio.Event()
        waiting = {"ready": self._ready, "name": name}
        self._door = Rule(self.guard, Door, {"guard": self.guard})
        rules: Any = [self._door, ("/(ready)?", Waiting, waiting)]
        self._router = _Switch(Application(rules))
        self._http = HTTPServer(
            self._router,
            max_body_size=_LARGEST,
            idle_connection_timeout=_SLOWEST,
            body_timeout=_SLOWEST,
        )
        self._http.add_sockets(sockets)
        self._application: Any = None

    def open(
        self,
        page: Callable[[], Any],
        reports: Mapping[str, bytes] = MappingProxyType({}),
        inboxes: Mapping[str, Inbox] = MappingProxyType({}),
    ) -> None:
        """Show an application.

        Args:
            page: makes the page of a tab.
            reports: HTML by random key, served at `/report/KEY`.
            inboxes: for uploads by random key, which come as `PUT /upload/KEY/DROP?name=…`.
        """
        from panel.io.server import get_server

        server: Any = get_server(
            page,
            address=ADDRESS,
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
        server._tornado.default_router.rules.insert(0, self._door)
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


class Waiting(RequestHandler):
    """The page that waits for the application, and what tells it that it is there."""

    def initialize(self, ready: asyncio.Event, name: str) -> None:
        """Take the event and the name of the command."""
        self.ready, self.name = ready, name

    async def get(self, asked: str | None) -> None:
        """Answer with the page; or, when the application is there, with nothing."""
        self.set_header("Cache-Control", "no-store")
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
        """Forbid caches, frames in foreign pages, and access to the application."""
        policy = "sandbox allow-scripts allow-downloads; frame-ancestors 'self'"
        self.set_header("Content-Security-Policy", policy)
        self.set_header("Cache-Control", "no-store")
        self.set_header("X-Content-Type-Options", "nosniff")

    def get(self, key: str) -> None:
        """Answer with the page."""
        if key not in self.reports:
            raise HTTPError(404)
        self.finish(self.reports[key])


@stream_request_body  # it is written to the disk as it comes
class Upload(RequestHandler):
    """Takes a file that was dropped into the page."""

    def initialize(self, inboxes: Mapping[str, Inbox]) -> None:
        """Take the inboxes."""
        self.inboxes = inboxes

    def prepare(self) -> None:
        """Look at the headers, and make room for the file."""
        key, drop = self.path_args
        length = self.request.headers.get("Content-Length", "")
        # A page of another port of this machine counts as the same site, and has the cookie.
        foreign = self.request.headers.get("Origin") != f"http://{self.request.host}"
        if foreign or key not in self.inboxes or not length.isdecimal():
            raise HTTPError(403)
        connection: Any = self.request.connection
        connection.set_max_body_size(LARGEST)
        connection.set_body_timeout(_LONGEST_UPLOAD)
        self._loop = IOLoop.current()
        self._end: Any = None
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
        end = getattr(self, "_end", None)
        if end is not None:
            self._loop.remove_timeout(end)

    def _refuse(self, error: Exception) -> None:
        from cassi.apps.view.jobs import explain

        self.set_status(413 if isinstance(error, ValueError) else 507)
        self.finish(explain(error))


class Guard(Matcher):
    """Matches the requests that go no further than to the `Door`.

    Args:
        token: that the cookie must hold.
        hosts: `name:port` that a request may be addressed to.
        cookie: its name, with the port: browsers share cookies among the ports of a host.

    Attributes:
        link: that lets a browser in once, if there is one.
    """

    def __init__(self, token: str, hosts: set[str], cookie: str) -> None:
        self.token, self.hosts, self.cookie = token, hosts, cookie
        self.command = cookie.rpartition("-")[0] or cookie
        self.link: OneTimeLink | None = None

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return {} for a request to stop at the door, and None for one to let through."""
        known = request.host in self.hosts and self._knows(self._cookie(request))
        return None if known and request.path != ENTER else {}

    def admits(self, request: HTTPServerRequest) -> bool:
        """Tell whether a request has the token in its address."""
        given = parse_qs(request.query).get("token", [""])[0]
        return request.host in self.hosts and request.path == "/" and self._knows(given)

    def awaits(self, request: HTTPServerRequest) -> bool:
        """Tell whether a request may have the code of the one-time link in its body."""
        there = request.host in self.hosts and request.path == ENTER
        return there and request.method == "POST" and self.link is not None

    def redeem(self, code: str) -> bool:
        """Tell whether a code is that of the one-time link, which ends with it."""
        return self.link is not None and self.link.redeem(code)

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie(self, request: HTTPServerRequest) -> str:
        try:
            found = SimpleCookie(request.headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


@stream_request_body  # it answers before a body comes
class Door(RequestHandler):
    """Answers a request without cookie: with a cookie if it has the token or the code, or 403."""

    def initialize(self, guard: Guard) -> None:
        """Take the guard."""
        self.guard, self.body = guard, b""

    def prepare(self) -> None:
        """Answer a request of any method, except one whose body may have the code."""
        if self.request.method == "GET" and self.guard.admits(self.request):
            self._let_in()
            self.redirect("/")
        elif not self.guard.awaits(self.request):
            self._refuse()

    def data_received(self, chunk: bytes) -> None:
        """Keep what comes, at most the 4 KiB that the server takes."""
        self.body += chunk

    def post(self) -> None:
        """Let in who has the code."""
        code = parse_qs(self.body.decode("latin1")).get("code", [""])[0]
        if not self.guard.redeem(code):
            self._refuse()
            return
        self._let_in()
        # The page of the link has another origin, and a redirect from it would lack the cookie.
        self.finish('<!doctype html><meta http-equiv="refresh" content="0; url=/">')

    def _let_in(self) -> None:
        token, name = self.guard.token, self.guard.cookie
        self.set_cookie(name, token, httponly=True, samesite="Strict", path="/")
        self.set_header("Cache-Control", "no-store")

    def _refuse(self) -> None:
        self.set_status(403)
        self.set_header("Connection", "close")
        self.finish(f"403: open the address that {self.guard.command} printed when it started\n")
