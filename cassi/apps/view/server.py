"""The web server: it listens on this machine only and asks for a token."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from tornado.httputil import HTTPServerRequest
from tornado.routing import Matcher, Rule
from tornado.web import HTTPError, RequestHandler

ADDRESS = "127.0.0.1"
_LARGEST = 2**30
"""Bytes of a message from the page; base64 makes an upload a third larger."""


def make_server(page: Callable[[], Any], reports: Mapping[str, bytes], port: int = 0) -> Any:
    """Start a server that shows a page to a browser that has the token.

    The first request has the token in its address, `/?token=…`, and gets a cookie. Every other
    request needs the cookie, for files, reports and websockets too. A request to another host name
    is refused: a foreign page can make a name of its own lead to this machine (DNS rebinding).

    Args:
        page: makes the page of a tab.
        reports: HTML by random key, served at `/report/KEY`.
        port: to listen on; 0 takes a free one.

    Returns:
        A server of Bokeh, started, with its address as `server.entrance`.

    Raises:
        OSError: the port is taken.
    """
    from panel.io.server import get_server

    token = secrets.token_urlsafe(24)
    server: Any = get_server(
        page,
        port=port,
        address=ADDRESS,
        websocket_origin="localhost",  # the right one when the port is known
        title="cassi-view",
        websocket_max_message_size=_LARGEST,
        extra_patterns=[("/report/([A-Za-z0-9_-]+)", Report, {"reports": reports})],
        start=False,
    )
    hosts = {f"{name}:{server.port}" for name in (ADDRESS, "localhost")}
    server._tornado._websocket_origins.clear()
    server._tornado._websocket_origins.update(hosts)
    guard = Guard(token, hosts, f"cassi-view-{server.port}")
    rules = server._tornado.default_router.rules
    rules.insert(0, Rule(guard, Refusal, {"guard": guard}))
    server.entrance = f"http://{ADDRESS}:{server.port}/?token={token}"
    server.start()
    return server


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


class Guard(Matcher):
    """Matches the requests to refuse, so that tornado gives them to `Refusal`.

    Args:
        token: that the cookie must hold.
        hosts: `name:port` that a request may be addressed to.
        cookie: its name, with the port: browsers share cookies among the ports of a host.
    """

    def __init__(self, token: str, hosts: set[str], cookie: str) -> None:
        self.token, self.hosts, self.cookie = token, hosts, cookie

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return {} for a request to refuse, and None for one to let through."""
        allowed = request.host in self.hosts and self._knows(self._cookie(request))
        return None if allowed else {}

    def admits(self, request: HTTPServerRequest) -> bool:
        """Tell whether a request has the token in its address."""
        given = parse_qs(request.query).get("token", [""])[0]
        return request.host in self.hosts and request.path == "/" and self._knows(given)

    def _knows(self, given: str) -> bool:
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _cookie(self, request: HTTPServerRequest) -> str:
        try:
            found = SimpleCookie(request.headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return "" if found is None else found.value


class Refusal(RequestHandler):
    """Answers a request without cookie: with a cookie if it has the token, else with 403."""

    def initialize(self, guard: Guard) -> None:
        """Take the guard."""
        self.guard = guard

    def prepare(self) -> None:
        """Answer a request of any method."""
        if self.request.method == "GET" and self.guard.admits(self.request):
            token, name = self.guard.token, self.guard.cookie
            self.set_cookie(name, token, httponly=True, samesite="Strict", path="/")
            self.redirect("/")
            return
        self.set_status(403)
        self.finish("403: open the address that cassi-view printed when it started\n")
