"""Who is let in: requests with the cookie, addressed to this machine, and no others."""

import asyncio
import contextlib
import re
import stat
import time
from pathlib import Path

import pytest

pytest.importorskip("panel", reason="needs panel")
from tornado.ioloop import IOLoop

from cassi.apps.view import launch
from cassi.apps.view import server as server_module
from cassi.apps.view.command import main, parse
from cassi.apps.view.pages.app import Application
from cassi.apps.view.server import ReportHandler, Server, UploadHandler
from cassi.apps.view.uploads import Inbox


@pytest.fixture
def server():
    server = Server(lambda: "page")
    yield server
    server.stop()


def test_a_server_listens_on_this_machine_and_draws_a_code(server):
    other = Server(lambda: None)
    other.stop()
    assert server.entrance.startswith(f"http://127.0.0.1:{server.port}/?code=")
    sockets = server._server._http._sockets.values()
    assert {socket.getsockname()[0] for socket in sockets} == {"127.0.0.1"}
    assert server.entrance[-32:] != other.entrance[-32:]


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


def test_refusals_come_before_bodies(server):
    head = "POST {} HTTP/1.1\r\nHost: HOST\r\nContent-Length: {}\r\n\r\n"
    for path in ("/", "/ws", "/report/a", f"/?code={server.guard.code}"):  # a code comes by GET
        answer = server.io_loop.run_sync(
            lambda path=path: _ask(server.port, head.format(path, 10**8))
        )
        assert answer.startswith("HTTP/1.1 403"), path  # no byte of the body has been sent


def test_slow_senders_are_cut_off(monkeypatch):
    monkeypatch.setattr(server_module, "_MAX_HEADER_SECONDS", 0.2)
    server = Server(lambda: None)
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


def test_uploads_come_from_the_page_alone():
    inbox = Inbox()
    patterns = [("/upload/([A-Za-z0-9_-]+)/([0-9]+)", UploadHandler, {"inboxes": {"key": inbox}})]
    server = Server(lambda: None, patterns=patterns, max_body_bytes=8)
    try:
        path = "/upload/key/1?name=a.npy"
        assert _put(server, path).startswith("HTTP/1.1 204")
        assert "got a.npy twice" in _put(server, path)
        assert inbox.take("1") == {"a.npy": b"1234"}
        for answer in (
            _put(server, path, cookie=False),
            _put(server, path, origin="http://127.0.0.1:1"),
            _put(server, "/upload/guess/1?name=a.npy"),
        ):
            assert answer.startswith("HTTP/1.1 403")
        assert inbox.take("1") == {}
        assert _put(server, path, length=9).startswith("HTTP/1.1 4")
    finally:
        server.stop()


def _get(server, path, cookie="", host="HOST"):
    head = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    head += f"Cookie: {cookie}\r\n\r\n"
    return server.io_loop.run_sync(lambda: _ask(server.port, head))


def _status(*request, **more):
    return _get(*request, **more)[9:12]


def test_the_cookie_lets_through_and_nothing_else(server):
    guard = server.guard
    path, cookie = f"{guard.path}/static/js/bokeh.min.js", f"{guard.cookie_name}={guard.cookie}"
    for good in (cookie, f"a=b; {cookie}", f"bad cookie; []=,; {cookie}; cassi=x"):
        assert _status(server, path, good) == "200"
    wrong = ("", f"{guard.cookie_name}=", f"{cookie}2", f"other={guard.cookie}")
    for bad in (*wrong, f"{guard.cookie_name}={guard.code}", f"{guard.cookie_name}=é"):
        assert _status(server, path, bad) == "403"
    assert _status(server, path, "\x00") == "400"
    assert _status(server, path, cookie, host=f"evil.example:{server.port}") == "403"


def test_the_code_counts_once_here_and_at_the_door_alone(server):
    code, entered = server.guard.code, []
    server.guard.on_entry = lambda: entered.append(server.guard.code)
    assert _status(server, f"/?code={code}", host=f"evil.example:{server.port}") == "403"
    for path in (f"/static/a.js?code={code}", f"/?code={code[:-1]}", "/", f"{server.guard.path}/"):
        assert _status(server, path) == "403"
    assert _status(server, f"/?code={code}") == "200"
    assert _status(server, f"/?code={code}") == "403"
    assert entered == [server.guard.code] != [code]
    assert _status(server, f"/?code={server.guard.code}") == "200"


def test_a_browser_gets_a_cookie_for_the_paths_of_the_application_alone(server):
    """Other servers of this machine get the cookies of `/`, and may set some."""
    code = server.guard.code
    answer = _get(server, f"/?code={code}")
    (line,) = [line for line in answer.splitlines() if line.startswith("Set-Cookie: ")]
    cookie, *rest = line.removeprefix("Set-Cookie: ").split("; ")
    assert {"HttpOnly", "SameSite=Strict", f"Path={server.guard.path}/"} == set(rest)
    assert code not in answer
    assert _status(server, f"{server.guard.path}/static/js/bokeh.min.js", cookie) == "200"


def test_no_answer_is_kept_framed_or_named_elsewhere():
    patterns = [("/report/([a-z]+)", ReportHandler, {"reports": {"key": b"report"}})]
    server = Server(lambda: "page", patterns=patterns)
    path, cookie = server.guard.path, f"{server.guard.cookie_name}={server.guard.cookie}"
    try:
        paths = (
            "/",
            "/ws",
            "/favicon.ico",
            "/static/js/bokeh.min.js",
            "/metadata",
            "/report/guess",
            "/nowhere",
        )
        answers = [_get(server, f"/?code={server.guard.code}"), _get(server, "/nowhere")]
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


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of panel
def test_a_tab_has_all_sections_and_takes_uploads(tmp_path):
    reports, inboxes = {}, {}
    application = Application([tmp_path], tmp_path, reports, inboxes)
    server = Server(application.page)
    cookie = f"{server.guard.cookie_name}={server.guard.cookie}"
    try:
        page = _get(server, f"{server.guard.path}/", cookie)
    finally:
        server.stop()
        application.stop()
    assert re.findall('<section class="(.*?)" aria-label="(.*?)"', page) == [
        *(("empty", "Results"), ("", "Files"), ("", "Camera"), ("", "Reconstruct")),
        *(("empty", "Look"), ("empty", "Save")),
    ]
    assert "http://" not in page.replace(f"http://127.0.0.1:{server.port}", "")
    assert len(inboxes) == 3


def test_a_link_lies_where_no_other_user_can_write(tmp_path):
    with launch.make_private_folder(tmp_path) as inside:
        assert stat.S_IMODE(Path(inside).stat().st_mode) == 0o700
        assert Path(inside).is_relative_to(tmp_path)
    tmp_path.chmod(0o777)
    with launch.make_private_folder(tmp_path) as outside:
        assert not Path(outside).is_relative_to(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_browser_is_given_no_secret(tmp_path, monkeypatch, capsys):
    """But the name of a file that leads it in."""
    given = []

    def open_browser(address):
        given.extend((address, Path(address.removeprefix("file://")).read_text()))
        loop.call_soon_threadsafe(loop.stop)

    loop = IOLoop.current().asyncio_loop
    monkeypatch.setattr(launch.webbrowser, "open", open_browser)
    main([str(tmp_path), "--output", str(tmp_path / "out")])
    address, page = given
    entrance = capsys.readouterr().out.split()[1]
    code = entrance.partition("code=")[2]
    assert f'href="{entrance}"' in page
    assert address.startswith("file:///")
    assert code not in address
    assert list((tmp_path / "out").iterdir()) == []


def test_folders_and_ports(tmp_path, capsys):
    given = parse([str(tmp_path), "--port", "8000"])
    assert (given.folders, given.port, given.no_browser) == ([tmp_path], 8000, False)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "nowhere"), "--no-browser", "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "expected a folder" in capsys.readouterr().err
