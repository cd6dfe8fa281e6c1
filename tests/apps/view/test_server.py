"""Who is let in: requests with the token, addressed to this machine, and no others."""

from types import SimpleNamespace

import pytest

pytest.importorskip("panel", reason="needs panel")
from tornado.httputil import HTTPHeaders

from cassi.apps.view.command import main, parse
from cassi.apps.view.server import Guard, make_server

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


def test_a_server_listens_on_this_machine_and_draws_a_token():
    servers = [make_server(lambda: None, {}) for _ in range(2)]
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


def test_folders_and_ports(tmp_path, capsys):
    given = parse([str(tmp_path), "--port", "8000"])
    assert (given.folders, given.port, given.no_browser) == ([tmp_path], 8000, False)
    with pytest.raises(SystemExit) as stop:
        main([str(tmp_path / "nowhere"), "--no-browser", "--output", str(tmp_path / "out")])
    assert stop.value.code == 2
    assert "expected a folder" in capsys.readouterr().err
