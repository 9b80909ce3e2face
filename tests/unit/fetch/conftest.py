"""What the tests of downloads share: a server on this machine, and a folder to download into."""

import threading
from http.server import ThreadingHTTPServer
from types import SimpleNamespace

import pytest

from metadr.data import fetch as module
from metadr.data.fetch import fetch
from metadr.data.remote import RemoteFile
from metadr.errors import UserError


@pytest.fixture
def server(web, monkeypatch):
    """`server.plan("/a", first answer, then, ...)` gives a url; the last answer is repeated."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "BACKOFF", 0.01)
    http = ThreadingHTTPServer(("127.0.0.1", 0), web.Handler)
    http.daemon_threads, http.block_on_close = True, False
    http.plans, http.requests, http.lock = {}, [], threading.Lock()
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()

    def plan(path, *answers):
        http.plans[path] = list(answers)
        return f"http://127.0.0.1:{http.server_port}{path}"

    yield SimpleNamespace(plan=plan, requests=http.requests, host=f"127.0.0.1:{http.server_port}")
    http.shutdown()
    http.server_close()
    thread.join()


@pytest.fixture
def get(web, tmp_path):
    """Fetch one file, and check that nothing but it is there afterwards."""

    def run(*urls, name="file.bin", checksum=web.SUM, size=None, left=(), **options):
        folder = tmp_path / "data"
        try:
            paths = fetch([RemoteFile(name, urls, checksum, size)], folder, hint=web.HINT, **options)
        finally:
            found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            assert found - {name} == set(left)
        assert paths == [folder / name]
        return paths[0].read_bytes()

    return run


@pytest.fixture
def fails(web, get, tmp_path):
    """Fetch one file that cannot be had: the error is one line, says what and ends with the hint."""

    def run(*urls, **options):
        with pytest.raises(UserError) as error:
            get(*urls, **options)
        message = str(error.value)
        assert message.startswith("Cannot download file.bin: ") and message.endswith(web.HINT)
        assert "\n" not in message and message.isprintable()
        assert not (tmp_path / "data" / "file.bin").exists()
        return message

    return run
