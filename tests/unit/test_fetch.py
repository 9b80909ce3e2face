"""Downloads from a real server on this machine that answers as told: whole, cut, slowly, wrongly or not at all."""

import fcntl
import hashlib
import json
import logging
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest

from metadr.data import fetch as module
from metadr.data.fetch import fetch
from metadr.data.part import checksum_of
from metadr.data.remote import RemoteFile
from metadr.errors import UserError

BODY = bytes(range(256)) * 400  # 102,400 bytes
OTHER = BODY[::-1]
SUM = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
# The package without its __init__, which imports torch: seconds that these processes have no use for.
LIGHT = (
    "import sys, types; sys.modules['metadr'] = types.ModuleType('metadr')\nsys.modules['metadr'].__path__ = [{!r}]\n"
)
HINT = "Get it by hand and run 'metadr data import'."


def sha256(body):
    return f"sha256:{hashlib.sha256(body).hexdigest()}"


def serve(
    body=BODY,
    *,
    ranges=True,
    conditions=True,
    etag=None,
    modified=None,
    cut=None,
    pause=None,
    drip=None,
    length=None,
    chunked=False,
    content_range=None,
    kind="application/octet-stream",
):
    """An answer that holds a file.

    cut: Close the connection after as many bytes of this answer. pause: (bytes, event) wait for the event after them.
    drip: Seconds between two bytes. length: the Content-Length to claim, 'none' for none.
    """

    def answer(handler):
        asked = handler.headers["Range"]
        if conditions and handler.headers["If-Range"] not in (None, etag, modified):
            asked = None
        first = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and ranges else 0
        if asked and ranges and first >= len(body):
            handler.send_response(416)
            handler.send_header("Content-Range", f"bytes */{len(body)}")
            handler.end_headers()
            return
        handler.send_response(206 if asked and ranges else 200)
        if asked and ranges:
            given = content_range or "bytes {first}-{last}/{total}"
            span = given.format(first=first, last=len(body) - 1, total=len(body))
            handler.send_header("Content-Range", span)
        part = body[first:]
        if chunked:
            handler.send_header("Transfer-Encoding", "chunked")
        elif length != "none":
            handler.send_header("Content-Length", str(len(part) if length is None else length))
        for name, value in (("ETag", etag), ("Last-Modified", modified), ("Content-Type", kind)):
            if value:
                handler.send_header(name, value)
        handler.end_headers()
        sent = part if cut is None else part[:cut]
        if chunked:
            handler.wfile.write(b"%x\r\n%s" % (len(part), sent))
            handler.wfile.write(b"\r\n0\r\n\r\n" if cut is None else b"")
        elif pause:
            handler.wfile.write(sent[: pause[0]])
            pause[1].wait(20)
            handler.wfile.write(sent[pause[0] :])
        elif drip:
            for byte in sent:
                handler.wfile.write(bytes([byte]))
                time.sleep(drip)
        else:
            handler.wfile.write(sent)

    return answer


def status(code, location=None):
    def answer(handler):
        handler.send_response(code)
        if location:
            handler.send_header("Location", location)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return answer


def hang_up(handler):
    handler.connection.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.close_connection = True
        headers = {name: self.headers[name] for name in ("Range", "If-Range") if self.headers[name]}
        with self.server.lock:
            self.server.requests.append((self.path, headers))
            plan = self.server.plans.get(self.path, [status(404)])
            answer = plan.pop(0) if len(plan) > 1 else plan[0]
        with suppress(OSError):  # the other side has gone: what some tests are about
            answer(self)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    """`server.plan("/a", first answer, then, ...)` gives a url; the last answer is repeated."""
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(module, "BACKOFF", 0.01)
    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
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
def get(tmp_path):
    """Fetch one file, and check that nothing but it is there afterwards."""

    def run(*urls, name="file.bin", checksum=SUM, size=None, left=(), **options):
        folder = tmp_path / "data"
        try:
            paths = fetch([RemoteFile(name, urls, checksum, size)], folder, hint=HINT, **options)
        finally:
            found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
            assert found - {name} == set(left)
        assert paths == [folder / name]
        return paths[0].read_bytes()

    return run


@pytest.fixture
def fails(get, tmp_path):
    """Fetch one file that cannot be had: the error is one line, says what and ends with the hint."""

    def run(*urls, **options):
        with pytest.raises(UserError) as error:
            get(*urls, **options)
        message = str(error.value)
        assert message.startswith("Cannot download file.bin: ") and message.endswith(HINT)
        assert "\n" not in message and message.isprintable()
        assert not (tmp_path / "data" / "file.bin").exists()
        return message

    return run


def ranges_of(server):
    return [headers.get("Range") for _, headers in server.requests]


@pytest.mark.parametrize("checksum", [None, sha256(BODY), sha256(BODY).upper().replace("SHA", "sha"), "md5"])
@pytest.mark.parametrize("size", [None, len(BODY)])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_plain_download(server, get, checksum, size, chunked):
    checksum = f"md5:{hashlib.md5(BODY).hexdigest()}" if checksum == "md5" else checksum
    url = server.plan("/a", serve(chunked=chunked))
    assert get(url, name="sub/folder/file.bin", checksum=checksum, size=size) == BODY
    assert server.requests == [("/a", {})]


def test_an_empty_file(server, get):
    assert get(server.plan("/a", serve(b"")), checksum=sha256(b""), size=0) == b""


def test_several_files_and_those_that_are_there(server, tmp_path):
    names = ["a", "b", "c"]
    files = [RemoteFile(n, (server.plan(f"/{n}", serve(n.encode() * 99)),), sha256(n.encode() * 99)) for n in names]
    (tmp_path / "b").write_bytes(b"b" * 99)
    inode = (tmp_path / "b").stat().st_ino
    assert fetch(files, tmp_path, hint=HINT) == [tmp_path / n for n in names]
    assert [path for path, _ in server.requests] == ["/a", "/c"]
    assert fetch(files, tmp_path, hint=HINT) == [tmp_path / n for n in names]
    assert len(server.requests) == 2
    assert (tmp_path / "b").stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_file_that_is_there_without_known_checksum(server, tmp_path):
    url = server.plan("/a", serve())
    (tmp_path / "a").write_bytes(b"mine")
    fetch([RemoteFile("a", (url,))], tmp_path, hint=HINT)
    fetch([RemoteFile("a", (url,), size=4)], tmp_path, hint=HINT)
    assert (tmp_path / "a").read_bytes() == b"mine" and server.requests == []
    fetch([RemoteFile("a", (url,), size=len(BODY))], tmp_path, hint=HINT)
    assert (tmp_path / "a").read_bytes() == BODY


def test_a_wrong_file_stays_until_a_right_one_comes(server, tmp_path, caplog):
    (tmp_path / "a").write_bytes(b"wrong")
    file = RemoteFile("a", (server.plan("/a", status(404), serve()),), sha256(BODY))
    with caplog.at_level(logging.WARNING, "metadr"), pytest.raises(UserError, match="answered 404 Not Found"):
        fetch([file], tmp_path, hint=HINT)
    assert sha256(b"wrong") in caplog.text and sha256(BODY) in caplog.text
    assert (tmp_path / "a").read_bytes() == b"wrong"
    fetch([file], tmp_path, hint=HINT)
    assert (tmp_path / "a").read_bytes() == BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [400, 403, 404, 410, 429, 500, 502, 503])
def test_the_next_mirror(server, get, code):
    bad, good = server.plan("/bad", status(code)), server.plan("/good", serve())
    assert get(bad, good) == BODY
    assert [path for path, _ in server.requests] == ["/bad", "/good"]  # asked once each


def test_no_mirror(server, fails):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urls = [server.plan(f"/{code}", status(code)) for code in (404, 403, 500)]
    started = time.monotonic()
    message = fails(*urls, f"http://127.0.0.1:{port}/x", "https://nowhere.invalid/x")
    assert "answered 404 Not Found; " in message
    assert "answered 403 Forbidden; " in message
    assert "answered 500 Internal Server Error; " in message
    assert f"127.0.0.1:{port} could not be reached (Connection refused); " in message
    assert "nowhere.invalid could not be reached (" in message
    assert len(server.requests) == 3
    assert time.monotonic() - started < 10


def test_no_address_at_all(fails):
    assert "it has no public address" in fails()


def test_redirects(server, get, fails):
    server.plan("/there", serve(cut=1000), serve())
    url = server.plan("/here", status(302, "/over"))
    server.plan("/over", status(307, "/there"))
    assert get(url) == BODY
    paths = [path for path, _ in server.requests]
    assert paths == ["/here", "/over", "/there"] * 2
    assert ranges_of(server) == [None] * 3 + ["bytes=1000-"] * 3


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("/here", "answered 302 Found"),
        ("file:///etc/passwd", "answered 302 Found"),
        ("ftp://127.0.0.1/x", "could not be reached (unknown url type: ftp)"),
        ("http://[", "leads to an address that is not valid"),
        ("http://127.0.0.1:port/", "leads to an address that is not valid"),
    ],
)
def test_redirects_to_nowhere(server, fails, location, said):
    assert said in fails(server.plan("/here", status(302, location)))


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_connection_is_resumed(server, get, chunked):
    url = server.plan("/a", serve(cut=40_000, chunked=chunked), serve(cut=20_000), serve())
    assert get(url) == BODY
    assert ranges_of(server) == [None, "bytes=40000-", "bytes=60000-"]


def test_attempts_end_and_the_rest_comes_from_the_next_mirror(server, get):
    bad = server.plan("/bad", serve(cut=1000, etag='"bad"'))
    good = server.plan("/good", serve(etag='"good"'))
    assert get(bad, good, attempts=3) == BODY
    assert [path for path, _ in server.requests] == ["/bad"] * 3 + ["/good"]
    assert ranges_of(server) == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert "If-Range" in server.requests[2][1] and "If-Range" not in server.requests[3][1]  # the tag is the other's


def test_cut_for_good_keeps_the_part_for_the_next_run(server, fails, get):
    url = server.plan("/a", serve(cut=1000), status(503), serve())
    message = fails(url, attempts=1, left=["file.bin.part", "file.bin.part.json"])
    assert "cut the connection after 1000 of 102400 bytes" in message
    assert "The 1000 bytes that arrived are kept for the next attempt." in message
    message = fails(url, attempts=1, left=["file.bin.part", "file.bin.part.json"])
    assert "answered 503 Service Unavailable" in message and "The 1000 bytes" in message
    assert get(url) == BODY
    assert ranges_of(server) == [None, "bytes=1000-", "bytes=1000-"]


def test_an_attempt_that_gained_much_is_not_counted(server, get, monkeypatch):
    monkeypatch.setattr(module, "WORTHWHILE", 1000)
    url = server.plan("/a", *[serve(cut=10_000)] * 10, serve())
    assert get(url, attempts=2) == BODY
    assert len(server.requests) == 11


def test_the_same_bytes_again_are_no_gain(server, fails, monkeypatch):
    monkeypatch.setattr(module, "WORTHWHILE", 1000)
    answers = [serve(cut=cut, ranges=False) for cut in (5000, 2000, 5000, 2000, 5000)]
    fails(server.plan("/a", *answers), attempts=3, left=["file.bin.part", "file.bin.part.json"])
    assert len(server.requests) == 3


def test_a_mirror_that_was_there_a_moment_ago_is_tried_again(server, get, monkeypatch):
    """The network goes and comes back: no connection, where a mirror never reached is given up at once."""
    connected, calls = module._Fetcher.open, []

    def flaky(self, url, headers):
        calls.append(headers)
        if len(calls) == 2:
            raise module._Failed("could not be reached") from urllib.error.URLError("down")
        return connected(self, url, headers)

    monkeypatch.setattr(module._Fetcher, "open", flaky)
    assert get(server.plan("/a", serve(cut=1000), serve())) == BODY
    assert calls == [{}, {"Range": "bytes=1000-"}, {"Range": "bytes=1000-"}]


def test_backoff_doubles(server, fails, monkeypatch):
    waits = []
    monkeypatch.setattr(module, "BACKOFF", 2.0)
    monkeypatch.setattr(module.time, "sleep", waits.append)
    assert "broke the connection (" in fails(server.plan("/a", hang_up), attempts=7)
    assert waits == [2, 4, 8, 16, 30, 30]
    assert len(server.requests) == 7


def test_ranges_ignored_starts_from_zero(server, get):
    assert get(server.plan("/a", serve(cut=50_000), serve(ranges=False))) == BODY
    assert ranges_of(server) == [None, "bytes=50000-"]


@pytest.mark.parametrize("given", ["bytes 7-102399/102400", "bytes {first}-{last}/7", "items 1", "bytes 1-2", " "])
def test_a_wrong_range_is_not_appended(server, get, given):
    assert get(server.plan("/a", serve(cut=1000), serve(content_range=given), serve())) == BODY
    assert ranges_of(server) == [None, "bytes=1000-", None]


def test_all_of_the_file_labelled_as_a_range(server, get):
    def answer(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(BODY) - 1}/{len(BODY)}")
        handler.send_header("Content-Length", str(len(BODY)))
        handler.end_headers()
        handler.wfile.write(BODY)

    assert get(server.plan("/a", serve(cut=1000), answer)) == BODY
    assert ranges_of(server) == [None, "bytes=1000-"]


def test_ranges_without_a_total(server, get):
    assert get(server.plan("/a", serve(cut=1000), serve(content_range="bytes {first}-{last}/*"))) == BODY
    assert ranges_of(server) == [None, "bytes=1000-"]


@pytest.mark.parametrize("names", [{"etag": '"one"'}, {"modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
@pytest.mark.parametrize("conditions", [True, False])
def test_a_file_that_changes_is_not_glued(server, get, names, conditions):
    """No checksum to find it out: the server's own marks must. Also where it does not know If-Range."""
    changed = {name: value.replace("one", "two").replace("2024", "2025") for name, value in names.items()}
    url = server.plan("/a", serve(cut=50_000, **names), serve(OTHER, conditions=conditions, **changed))
    assert get(url, checksum=None) == OTHER
    assert server.requests[1][1] == {"Range": "bytes=50000-", "If-Range": next(iter(names.values()))}
    assert ranges_of(server)[2:] == ([] if conditions else [None])


def test_a_file_that_stays_is_resumed_by_its_mark(server, get):
    url = server.plan("/a", serve(cut=50_000, etag='"one"'), serve(etag='"one"'))
    assert get(url, checksum=None) == BODY
    assert server.requests[1][1] == {"Range": "bytes=50000-", "If-Range": '"one"'}


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_mark_and_checksum_nothing_is_resumed(server, get, etag):
    url = server.plan("/a", serve(cut=50_000, etag=etag), serve(OTHER, etag=etag))
    assert get(url, checksum=None) == OTHER
    assert ranges_of(server) == [None, None]


def test_without_checksum_two_mirrors_are_not_glued(server, get):
    urls = [server.plan("/a", serve(cut=50_000, etag='"1"')), server.plan("/b", serve(OTHER, etag='"1"'))]
    assert get(*urls, checksum=None, attempts=1) == OTHER
    assert ranges_of(server) == [None, None]


def test_a_wrong_checksum_everywhere(server, fails):
    urls = [server.plan("/a", serve(OTHER)), server.plan("/b", serve(BODY + b"x"))]
    message = fails(*urls)
    assert f"sent {sha256(OTHER)} instead of {sha256(BODY)}; " in message
    assert f"sent {sha256(BODY + b'x')} instead of {sha256(BODY)}" in message
    assert [path for path, _ in server.requests] == ["/a", "/b"]


def test_a_wrong_checksum_then_the_next_mirror(server, get):
    assert get(server.plan("/a", serve(OTHER)), server.plan("/b", serve())) == BODY
    assert server.requests == [("/a", {}), ("/b", {})]  # from the first byte


def test_wrong_bytes_before_a_cut_are_fetched_again(server, get):
    """The prefix is wrong, the rest is right: the mirror that sent the rest gets a second chance."""
    urls = [server.plan("/a", serve(OTHER, cut=50_000)), server.plan("/b", serve())]
    assert get(*urls, attempts=2) == BODY
    assert ranges_of(server) == [None, "bytes=50000-", "bytes=100000-", None]


@pytest.mark.parametrize("size", [len(BODY) - 1, len(BODY) + 1])
def test_a_wrong_size_is_refused_before_the_first_byte(server, fails, size):
    said = f"has a file of {len(BODY)} bytes instead of {size}"
    assert said in fails(server.plan("/a", serve()), checksum=None, size=size)
    assert len(server.requests) == 1


def test_more_than_there_should_be(server, fails):
    url = server.plan("/a", serve(chunked=True))
    assert "sent more than the 1000 bytes there should be" in fails(url, checksum=None, size=1000)


def test_a_length_that_is_too_long(server, get):
    url = server.plan("/a", serve(length=len(BODY) + 500))
    assert get(url) == BODY  # the checksum says that it is whole
    assert ranges_of(server) == [None]


def test_a_length_that_is_too_long_without_checksum(server, fails):
    url = server.plan("/a", serve(length=len(BODY) + 500, etag='"1"'))
    message = fails(url, checksum=None, left=["file.bin.part", "file.bin.part.json"])
    assert f"cut the connection after {len(BODY)} of {len(BODY) + 500} bytes" in message
    assert len(server.requests) == 5  # two of three attempts ask for the rest first, and learn that there is none


def test_a_length_that_is_too_short(server, get, fails):
    url = server.plan("/a", serve(length=len(BODY) - 500))
    assert f"sent {sha256(BODY[:-500])} instead of" in fails(url)
    assert f"has a file of {len(BODY) - 500} bytes" in fails(url, checksum=None, size=len(BODY))
    assert get(url, server.plan("/b", serve())) == BODY


def test_no_length(server, get, fails, tmp_path):
    url = server.plan("/a", serve(length="none"))
    assert "does not say how long" in fails(url, checksum=None)
    assert get(url) == BODY
    (tmp_path / "data" / "file.bin").unlink()
    assert get(url, checksum=None, size=len(BODY)) == BODY
    (tmp_path / "data" / "file.bin").unlink()
    cut = server.plan("/cut", serve(length="none", cut=9), serve(length="none"))
    assert get(cut, checksum=None, size=len(BODY)) == BODY


def test_a_web_page_instead_of_the_file(server, get, fails):
    page = serve(b"<!doctype html>Quota exceeded", kind="text/html; charset=utf-8")
    assert "sent a web page instead of the file" in fails(server.plan("/a", page), checksum=None)
    assert get(server.plan("/b", page), name="page.html", checksum=None).startswith(b"<!doctype")


def test_silence_is_a_lost_connection(server, get):
    forever = threading.Event()
    url = server.plan("/a", serve(pause=(30_000, forever)), serve(pause=(0, forever)), serve())
    started = time.monotonic()
    assert get(url, timeout=0.3) == BODY
    assert ranges_of(server) == [None, "bytes=30000-", "bytes=30000-"]
    assert 0.6 < time.monotonic() - started < 5
    forever.set()


def test_silence_before_the_answer(server, fails):
    forever = threading.Event()
    url = server.plan("/a", lambda handler: forever.wait(20))
    assert "did not answer within 0.2 s" in fails(url, timeout=0.2, attempts=2)
    assert len(server.requests) == 2
    forever.set()


def test_a_drip_is_a_lost_connection(server, get):
    """A byte now and then keeps the socket's own timeout from ever ending the wait."""
    slow, good = server.plan("/slow", serve(drip=0.05)), server.plan("/good", serve())
    started = time.monotonic()
    assert get(slow, good, timeout=0.3, attempts=1) == BODY
    assert time.monotonic() - started < 5
    (_, first), (_, second) = server.requests
    assert first == {} and 0 < int(second["Range"].removeprefix("bytes=").rstrip("-")) < 30


def test_watch(server, get, monkeypatch):
    monkeypatch.setattr(module, "SHOW_EVERY", 0.0)
    seen = []
    url = server.plan("/a", serve(cut=40_000), serve())
    assert get(url, watch=seen.append) == BODY
    received = [now.received for now in seen]
    assert received[0] == 0 and received[-1] == len(BODY) and 40_000 in received
    assert received == sorted(received)
    assert {(now.name, now.total, now.mirror) for now in seen} == {("file.bin", len(BODY), server.host)}
    assert seen[-1].bytes_per_second > 0


def test_an_interrupt_keeps_the_part(server, get):
    def interrupt(now):
        if now.received >= 40_000:
            raise KeyboardInterrupt

    url = server.plan("/a", serve(cut=40_000, etag='"one"'), serve(etag='"one"'))
    with pytest.raises(KeyboardInterrupt):
        get(url, checksum=None, watch=interrupt, left=["file.bin.part", "file.bin.part.json"])
    assert get(url, checksum=None) == BODY
    assert ranges_of(server) == [None, "bytes=40000-"]


def test_a_part_that_is_whole_needs_no_server(get, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(BODY)
    assert get("http://nowhere.invalid/x") == BODY


@pytest.mark.parametrize("note", ["", "{", "[]", "7", '{"url": 7, "odd": 1}', None])
def test_a_damaged_note(server, get, tmp_path, note):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(BODY[:700])
    if note is not None:
        (tmp_path / "data" / "file.bin.part.json").write_text(note)
    assert get(server.plan("/a", serve())) == BODY
    assert ranges_of(server) == ["bytes=700-"]
    (tmp_path / "data" / "file.bin").unlink()
    (tmp_path / "data" / "file.bin.part").write_bytes(BODY[:700])
    assert get(server.plan("/b", serve(etag='"x"')), checksum=None) == BODY
    assert ranges_of(server)[1:] == [None]


def test_a_part_that_is_too_long(server, get, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(BODY + b"more")
    assert get(server.plan("/a", serve())) == BODY
    assert ranges_of(server) == ["bytes=102404-", None]


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file:///etc/passwd", "data:,x", "//host/x", "host/x", "http://", "http:///x", ""]
)
def test_other_urls_are_refused_before_anything_is_done(server, tmp_path, url):
    files = [RemoteFile("good", (server.plan("/a", serve()),)), RemoteFile("bad", (url,))]
    with pytest.raises(UserError, match=r"^The address of bad must begin with http:// or https://\. Got "):
        fetch(files, tmp_path / "data", hint=HINT)
    assert server.requests == [] and not (tmp_path / "data").exists()


@pytest.mark.parametrize("checksum", ["abc", "md5:xyz", "sha1:" + "0" * 40, "sha256:" + "0" * 63])
def test_a_checksum_must_be_one(tmp_path, checksum):
    with pytest.raises(UserError, match=f"^The checksum of f must be .* Got '{checksum}' instead"):
        fetch([RemoteFile("f", ("http://host/x",), checksum)], tmp_path, hint=HINT)


@pytest.mark.parametrize("name", ["", ".", "/etc/x", "../x", "a/../../x"])
def test_a_name_must_stay_inside(tmp_path, name):
    with pytest.raises(UserError, match="must be a path inside its folder"):
        fetch([RemoteFile(name, ("http://host/x",))], tmp_path / "data", hint=HINT)
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_before_the_download(server, get, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(UserError, match=r"102400 bytes are missing and .* has room for 100000\. Make room"):
        get(server.plan("/a", serve()))
    assert len(server.requests) == 1


def test_no_room_in_the_middle(server, get):
    url = server.plan("/a", serve())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"Cannot write .*file.bin.part: File too large\. What has arrived"):
            get(url, left=["file.bin.part", "file.bin.part.json"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert get(url) == BODY
    assert ranges_of(server) == [None, "bytes=50000-"]


def test_a_folder_that_cannot_be_written(server, tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    file = RemoteFile("f", (server.plan("/a", serve()),))
    for folder, said in [(tmp_path / "taken", "File exists"), (tmp_path / "taken" / "x", "Not a directory")]:
        with pytest.raises(UserError, match=rf"^Cannot write {folder}/f.part: {said}\. .* run the same command again"):
            fetch([file], folder, hint=HINT)
    (tmp_path / "f").mkdir()
    with pytest.raises(UserError, match=r"is not a file\. Move it away"):
        fetch([file], tmp_path, hint=HINT)
    assert server.requests == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(server, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(UserError, match="Permission denied"):
        fetch([RemoteFile("f", (server.plan("/a", serve()),))], tmp_path / "data", hint=HINT)
    assert server.requests == []


def test_a_second_process_is_told(server, get, tmp_path):
    (tmp_path / "data").mkdir()
    part = tmp_path / "data" / "file.bin.part"
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"file\.bin is being downloaded by another process\. Wait for it"):
            get(server.plan("/a", serve()), left=["file.bin.part"])
    assert server.requests == []
    assert get(server.plan("/a", serve())) == BODY


def test_another_process_was_faster(server, get, monkeypatch):
    claimed = module.claimed

    @contextmanager
    def late(target, kind):
        target.parent.mkdir()
        target.with_name("file.bin.part").write_bytes(b"old")
        with claimed(target, kind) as part:
            target.write_bytes(BODY)
            yield part

    monkeypatch.setattr(module, "claimed", late)
    assert get(server.plan("/a", serve())) == BODY
    assert server.requests == []


def test_two_at_once(server, tmp_path):
    """Each either has the whole file or is told of the other; the file is downloaded once."""
    go_on = threading.Event()
    file = RemoteFile("f", (server.plan("/a", serve(pause=(50_000, go_on))),), sha256(BODY))
    results = []

    def one():
        try:
            results.append(fetch([file], tmp_path, hint=HINT))
        except UserError as error:
            results.append(str(error))

    first, second = threading.Thread(target=one), threading.Thread(target=one)
    first.start()
    deadline = time.monotonic() + 10
    while not server.requests and time.monotonic() < deadline:
        time.sleep(0.01)
    second.start()
    second.join()
    go_on.set()
    first.join()
    assert "being downloaded by another process" in results[0]
    assert results[1] == [tmp_path / "f"]
    assert len(server.requests) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_kill_and_resume(server, get, tmp_path):
    """A real process, killed in mid-download: the next one asks for the rest only, and the whole is checked."""
    go_on = threading.Event()
    url = server.plan("/a", serve(pause=(60_000, go_on), etag='"one"'), serve(etag='"one"'))
    script = (
        LIGHT.format(str(Path(module.__file__).parents[1]))
        + "from pathlib import Path; from metadr.data.fetch import fetch; from metadr.data.remote import RemoteFile\n"
        "fetch([RemoteFile('file.bin', (sys.argv[1],))], Path(sys.argv[2]), hint='')\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, url, tmp_path / "data"])
    part = tmp_path / "data" / "file.bin.part"
    try:
        deadline = time.monotonic() + 60
        while not (part.exists() and part.stat().st_size == 60_000) and time.monotonic() < deadline:
            assert process.poll() is None
            time.sleep(0.02)
        with pytest.raises(UserError, match="being downloaded by another process"):
            get(url, left=["file.bin.part", "file.bin.part.json"])
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
        go_on.set()
    assert part.read_bytes() == BODY[:60_000]
    note = json.loads(part.with_name("file.bin.part.json").read_text())
    assert note == {"url": url, "etag": '"one"', "modified": None, "total": len(BODY)}
    assert get(url, checksum=None) == BODY
    assert [headers for _, headers in server.requests] == [{}, {"Range": "bytes=60000-", "If-Range": '"one"'}]


def test_checksum_of(tmp_path):
    (tmp_path / "f").write_bytes(BODY)
    assert checksum_of(tmp_path / "f") == sha256(BODY)
    assert checksum_of(tmp_path / "f", "md5") == f"md5:{hashlib.md5(BODY).hexdigest()}"
    with pytest.raises(UserError, match=r"^Cannot read .*: No such file or directory"):
        checksum_of(tmp_path / "missing")
