"""Who is let in: requests with the cookie, addressed to this machine, and no others."""

import asyncio
import contextlib
import stat
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("panel", reason="needs panel")
from tornado.httputil import HTTPHeaders

from cassi.apps.view import launch
from cassi.apps.view import server as server_module
from cassi.apps.view.command import main, parse
from cassi.apps.view.one_time_link import OneTimeLink
from cassi.apps.view.server import Guard, Server
from cassi.apps.view.uploads import LARGEST, Inbox

HOST = "127.0.0.1:1234"


def _request(path="/", query="", host=HOST, cookie=""):
    headers = HTTPHeaders({"Cookie": cookie})
    return SimpleNamespace(path=path, query=query, host=host, headers=headers, method="GET")


@pytest.fixture
def guard():
    return Guard({HOST})


def test_the_cookie_lets_through(guard):
    name, value = guard.cookie_name, guard.cookie
    for cookie in (f"a=b; {name}={value}", f"bad cookie; []=,; {name}={value}; cassi=x"):
        assert guard.match(_request(cookie=cookie)) is None
    wrong = ("", f"{name}=", f"{name}=other", f"{name}={value}2", f"other={value}", "\x00")
    for cookie in (*wrong, f"{name}={guard.code}", f"{name}=é"):
        assert guard.match(_request("/ws", cookie=cookie)) == {}


def test_other_hosts_are_refused_even_with_the_cookie_or_the_code(guard):
    cookie = f"{guard.cookie_name}={guard.cookie}"
    assert guard.match(_request(host="evil.example:1234", cookie=cookie)) == {}
    assert not guard.redeem(_request(query=f"code={guard.code}", host="evil.example:1234"))


def test_the_code_counts_once_and_at_the_door_alone(guard):
    code, entered = guard.code, []
    guard.entered = lambda: entered.append(guard.code)
    assert not guard.redeem(_request(path="/static/a.js", query=f"code={code}"))
    assert not guard.redeem(_request(query=f"code={code[:-1]}"))
    assert not guard.redeem(_request())
    assert guard.redeem(_request(query=f"code={code}"))
    assert not guard.redeem(_request(query=f"code={code}"))
    assert entered == [guard.code] != [code]
    assert guard.redeem(_request(query=f"code={guard.code}"))


def _serve(inboxes=None):
    server = Server()
    server.open(lambda: None, {}, inboxes or {})
    return server


def test_a_server_listens_on_this_machine_and_draws_a_code():
    servers = [_serve(), Server()]
    try:
        for server in servers:
            assert server.entrance.startswith(f"http://127.0.0.1:{server.port}/?code=")
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
    return answer.decode(errors="replace")


@pytest.fixture
def server():
    server = _serve()
    yield server
    server.stop()


def test_a_page_waits_until_the_application_is_there():
    server = Server()
    head = "GET {} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n"
    path = server.guard.path
    known = head + f"Cookie: {server.guard.cookie_name}={server.guard.cookie}\r\n"

    async def follow():
        assert (await _ask(server.port, head.format("/") + "\r\n")).startswith("HTTP/1.1 403")
        assert "Starting" in await _ask(server.port, known.format(f"{path}/") + "\r\n")
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        again = known.replace("Connection: close\r\n", "").replace(
            "HOST", f"127.0.0.1:{server.port}"
        )
        writer.write(again.format(f"{path}/").encode() + b"\r\n")
        await reader.readuntil(b"</html>\n")
        told = asyncio.ensure_future(_ask(server.port, known.format(f"{path}/ready") + "\r\n"))
        await asyncio.sleep(0.1)
        assert not told.done()
        server.open(lambda: None)
        assert (await told).startswith("HTTP/1.1 204")
        assert "Starting" not in await _ask(server.port, known.format(f"{path}/") + "\r\n")
        writer.write(again.format(f"{path}/static/js/bokeh.min.js").encode() + b"\r\n")
        assert b"200" in await reader.readline()  # on a connection of before
        writer.close()

    try:
        server.io_loop.run_sync(follow)
    finally:
        server.stop()


def test_refusals_come_before_bodies(server):
    head = "POST {} HTTP/1.1\r\nHost: HOST\r\nContent-Length: {}\r\n\r\n"
    for path in ("/", "/ws", "/report/a", f"/?code={server.guard.code}"):  # a code comes by GET
        answer = server.io_loop.run_sync(
            lambda path=path: _ask(server.port, head.format(path, 10**8))
        )
        assert answer.startswith("HTTP/1.1 403"), path  # no byte of the body has been sent


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
    host = f"127.0.0.1:{server.port}"
    head = f"PUT {server.guard.path}{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Cookie: {server.guard.cookie_name}={server.guard.cookie}\r\n" if cookie else ""
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


def _get(server, path, cookie=""):
    head = f"GET {path} HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n"
    head += f"Cookie: {cookie}\r\n\r\n"
    return server.io_loop.run_sync(lambda: _ask(server.port, head))


def test_a_browser_gets_a_cookie_for_the_paths_of_the_application_alone(server):
    """Other servers of this machine get the cookies of `/`, and may set some."""
    code = server.guard.code
    answer = _get(server, f"/?code={code}")
    assert answer.startswith("HTTP/1.1 200")
    (line,) = [line for line in answer.splitlines() if line.startswith("Set-Cookie: ")]
    cookie, *rest = line.removeprefix("Set-Cookie: ").split("; ")
    assert {"HttpOnly", "SameSite=Strict", f"Path={server.guard.path}/"} == set(rest)
    assert code not in answer
    assert _get(server, f"/?code={code}").startswith("HTTP/1.1 403")
    assert _get(server, f"{server.guard.path}/").startswith("HTTP/1.1 403")
    assert _get(server, f"{server.guard.path}/static/js/bokeh.min.js", cookie)[9:12] == "200"


def test_no_answer_is_kept_framed_or_named_elsewhere():
    server = Server()
    path, cookie = server.guard.path, f"{server.guard.cookie_name}={server.guard.cookie}"
    try:
        waiting = _get(server, f"{path}/", cookie)
        server.open(lambda: "page", {"key": b"report"})
        paths = ("/", "/ws", "/favicon.ico", "/static/js/bokeh.min.js", "/metadata", "/nowhere")
        answers = [waiting, _get(server, f"/?code={server.guard.code}"), _get(server, "/nowhere")]
        answers += [_get(server, f"{path}{each}", cookie) for each in paths]
        report = _get(server, f"{path}/report/key", cookie)
    finally:
        server.stop()
    for answer in (*answers, report):
        assert "\r\nCache-Control: no-store\r\n" in answer, answer[:400]
        assert "\r\nReferrer-Policy: no-referrer\r\n" in answer, answer[:400]
    for answer in answers:
        assert "\r\nContent-Security-Policy: frame-ancestors 'none'\r\n" in answer, answer[:400]
        assert "\r\nX-Frame-Options: DENY\r\n" in answer, answer[:400]
    assert "allow-downloads; frame-ancestors 'self'\r\n" in report
    assert "\r\nX-Frame-Options: SAMEORIGIN\r\n" in report


def test_a_file_leads_the_browser_in(server, tmp_path):
    link = OneTimeLink(tmp_path, server.entrance, "cassi-view")
    assert stat.S_IMODE(link.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(link.path.parent.stat().st_mode) == 0o700
    assert f'href="{server.entrance}"' in link.path.read_text()
    link.close()
    assert not link.path.parent.exists()


def test_a_link_lies_where_no_other_user_can_write(tmp_path):
    inside = OneTimeLink(tmp_path, "http://127.0.0.1", "cassi-view")
    assert inside.path.is_relative_to(tmp_path)
    inside.close()
    tmp_path.chmod(0o777)
    outside = OneTimeLink(tmp_path, "http://127.0.0.1", "cassi-view")
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
    code = capsys.readouterr().out.partition("code=")[2].split()[0]
    assert code not in address
    assert list((tmp_path / "out").iterdir()) == []


def test_folders_and_ports(tmp_path, capsys):
    given = parse([str(tmp_path), "--port", "8000"])
    assert (given.folders, given.port, given.no_browser) == ([tmp_path], 8000, False)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "nowhere"), "--no-browser", "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "expected a folder" in capsys.readouterr().err
