"""Who is let in: requests with the token, addressed to this machine, and no others."""

import asyncio
import contextlib
import stat
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("panel", reason="needs panel")
from tornado.httputil import HTTPHeaders

from cassi.apps.view import launch, one_time_link
from cassi.apps.view import server as server_module
from cassi.apps.view.command import main, parse
from cassi.apps.view.one_time_link import OneTimeLink
from cassi.apps.view.server import ENTER, Guard, Server
from cassi.apps.view.uploads import LARGEST, Inbox

HOST = "127.0.0.1:1234"


def _request(path="/", query="", host=HOST, cookie=""):
    headers = HTTPHeaders({"Cookie": cookie})
    return SimpleNamespace(path=path, query=query, host=host, headers=headers, method="GET")


@pytest.fixture
def guard():
    return Guard("secret", {HOST}, "view")


def test_the_cookie_lets_through(guard):
    assert guard.match(_request(cookie="a=b; view=secret")) is None
    for cookie in ("", "view=", "view=other", "view=secret2", "other=secret", "view=é", "\x00"):
        assert guard.match(_request("/ws", cookie=cookie)) == {}


def test_other_hosts_are_refused_even_with_the_token(guard):
    assert guard.match(_request(host="evil.example:1234", cookie="view=secret")) == {}
    assert not guard.admits(_request(query="token=secret", host="evil.example:1234"))


def test_the_token_is_taken_at_the_door_alone(guard):
    assert guard.admits(_request(query="token=secret"))
    assert not guard.admits(_request(path="/static/a.js", query="token=secret"))
    assert not guard.admits(_request(query="token=secre"))
    assert not guard.admits(_request())


def _serve(inboxes=None):
    server = Server()
    server.open(lambda: None, {}, inboxes or {})
    return server


def test_a_server_listens_on_this_machine_and_draws_a_token():
    servers = [_serve(), Server()]
    try:
        for server in servers:
            assert server.entrance.startswith(f"http://127.0.0.1:{server.port}/?token=")
            assert {socket.getsockname()[0] for socket in server._http._sockets.values()} == {
                "127.0.0.1"
            }
        assert servers[0].entrance[-32:] != servers[1].entrance[-32:]
    finally:
        for server in servers:
            server.stop()


async def _ask(port, head, body=b"", wait=10):
    """Send a request; return what is answered until the other side closes or is silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = head.replace("HOST", f"127.0.0.1:{port}")
    answer = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        writer.write(head.encode() + body)
        answer = await asyncio.wait_for(reader.read(), wait)
    writer.close()
    return answer.decode()


@pytest.fixture
def server():
    server = _serve()
    yield server
    server.stop()


def test_a_page_waits_until_the_application_is_there():
    server = Server()
    head = "GET {} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n"
    known = head + f"Cookie: {server.guard.cookie}={server.guard.token}\r\n"

    async def follow():
        assert (await _ask(server.port, head.format("/") + "\r\n")).startswith("HTTP/1.1 403")
        assert "Starting" in await _ask(server.port, known.format("/") + "\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        again = known.replace("Connection: close\r\n", "").replace(
            "HOST", f"127.0.0.1:{server.port}"
        )
        writer.write(again.format("/").encode() + b"\r\n")
        await reader.readuntil(b"</html>\n")
        told = asyncio.ensure_future(_ask(server.port, known.format("/ready") + "\r\n"))
        await asyncio.sleep(0.1)
        assert not told.done()
        server.open(lambda: None)
        assert (await told).startswith("HTTP/1.1 204")
        assert "Starting" not in await _ask(server.port, known.format("/") + "\r\n")
        writer.write(again.format("/static/js/bokeh.min.js").encode() + b"\r\n")
        assert b"200" in await reader.readline()  # on a connection of before
        writer.close()

    try:
        server.io_loop.run_sync(follow)
    finally:
        server.stop()


def test_refusals_come_before_bodies(server):
    head = "POST {} HTTP/1.1\r\nHost: HOST\r\nContent-Length: {}\r\n\r\n"
    for path in ("/", "/ws", "/report/a", ENTER):  # there is no link, so nothing enters
        answer = server.io_loop.run_sync(
            lambda path=path: _ask(server.port, head.format(path, 10**8))
        )
        assert answer.startswith("HTTP/1.1 403"), path  # no byte of the body has been sent


def test_bodies_are_short_before_anybody_is_known(server, tmp_path):
    server.guard.link = OneTimeLink(tmp_path, server.link_address)
    head = f"POST {ENTER} HTTP/1.1\r\nHost: HOST\r\n"
    for rest in ("Content-Length: 5000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n2000\r\n"):
        answer = server.io_loop.run_sync(
            lambda rest=rest: _ask(server.port, head + rest, b"a" * 0x2000)
        )
        assert answer.startswith("HTTP/1.1 400")


def test_slow_senders_are_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "_SLOWEST", 0.2)
    server = _serve()
    head = "POST / HTTP/1.1\r\nHost: HOST\r\n"
    try:
        for unfinished in (head, f"{head}Content-Length: 9\r\n\r\n"):
            start = time.monotonic()
            server.io_loop.run_sync(lambda text=unfinished: _ask(server.port, text))
            assert time.monotonic() - start < 5  # the other side has closed
    finally:
        server.stop()


def _put(server, path, origin="http://HOST", length=4, cookie=True):
    token, name = server.guard.token, server.guard.cookie
    host = f"127.0.0.1:{server.port}"
    head = f"PUT {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Cookie: {name}={token}\r\n" if cookie else ""
    head += f"Origin: {origin}\r\nContent-Length: {length}\r\n\r\n".replace("HOST", host)
    return server.io_loop.run_sync(lambda: _ask(server.port, head, b"1234"))


def test_uploads_come_from_the_page_alone(tmp_path):
    inbox = Inbox(tmp_path)
    server = _serve({inbox.key: inbox})
    try:
        path = f"/upload/{inbox.key}/1?name=a.npy"
        assert _put(server, path).startswith("HTTP/1.1 204")
        assert inbox.take("1")["a.npy"].tell() == 4
        for answer in (
            _put(server, path, cookie=False),
            _put(server, path, origin="http://127.0.0.1:1"),
            _put(server, "/upload/guess/1?name=a.npy"),
        ):
            assert answer.startswith("HTTP/1.1 403")
        assert inbox.take("1") == {}
        assert _put(server, path, length=LARGEST + 1).startswith("HTTP/1.1 413")
    finally:
        server.stop()


def test_an_upload_that_stands_still_is_cut_off(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "_SLOWEST", 0.3)
    inbox = Inbox(tmp_path)
    server = _serve({inbox.key: inbox})
    try:
        start = time.monotonic()
        assert _put(server, f"/upload/{inbox.key}/1?name=a.npy", length=9) == ""
        assert time.monotonic() - start < 5
    finally:
        server.stop()


def _enter(server, code, host="HOST"):
    body = f"code={code}".encode()
    head = f"POST {ENTER} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    return server.io_loop.run_sync(lambda: _ask(server.port, head, body))


def test_a_link_lets_in_once(server, tmp_path):
    link = server.guard.link = OneTimeLink(tmp_path, server.link_address)
    assert stat.S_IMODE(link.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(link.path.parent.stat().st_mode) == 0o700
    page = link.path.read_text()
    assert link.code in page
    assert server.link_address in page
    assert server.entrance[-32:] not in page
    assert _enter(server, "guess").startswith("HTTP/1.1 403")
    assert _enter(server, link.code, "evil.example").startswith("HTTP/1.1 403")
    answer = _enter(server, link.code)
    assert answer.startswith("HTTP/1.1 200")
    assert "HttpOnly" in answer
    assert "SameSite=Strict" in answer
    assert not link.path.parent.exists()
    assert _enter(server, link.code).startswith("HTTP/1.1 403")


def test_a_link_expires(server, tmp_path, monkeypatch):
    monkeypatch.setattr(one_time_link, "SECONDS", 0.0)
    link = server.guard.link = OneTimeLink(tmp_path, server.link_address)
    assert _enter(server, link.code).startswith("HTTP/1.1 403")


def test_a_link_lies_where_no_other_user_can_write(tmp_path):
    inside = OneTimeLink(tmp_path, "http://127.0.0.1")
    assert inside.path.is_relative_to(tmp_path)
    inside.close()
    tmp_path.chmod(0o777)
    outside = OneTimeLink(tmp_path, "http://127.0.0.1")
    try:
        assert not outside.path.is_relative_to(tmp_path)
    finally:
        outside.close()
    assert list(tmp_path.iterdir()) == []


def test_the_browser_is_given_no_secret(tmp_path, monkeypatch, capsys):
    given = []

    def open_browser(address):
        given.append(address)
        asyncio.run_coroutine_threadsafe(stop(), loop[0])

    async def stop():
        servers[0].io_loop.stop()

    servers, loop = [], []

    def make(*args):
        servers.append(Server(*args))
        loop.append(servers[0].io_loop.asyncio_loop)
        return servers[0]

    monkeypatch.setattr(server_module, "Server", make)
    monkeypatch.setattr(launch.webbrowser, "open", open_browser)
    main([str(tmp_path), "--output", str(tmp_path / "out")])
    (address,) = given
    assert address.startswith("file:///")
    token = capsys.readouterr().out.partition("token=")[2].split()[0]
    assert token not in address
    assert servers[0].guard.link.code not in address
    assert list((tmp_path / "out").iterdir()) == []


def test_folders_and_ports(tmp_path, capsys):
    given = parse([str(tmp_path), "--port", "8000"])
    assert (given.folders, given.port, given.no_browser) == ([tmp_path], 8000, False)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "nowhere"), "--no-browser", "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "expected a folder" in capsys.readouterr().err
