"""Downloads that break off, stall or were killed: what has arrived is kept, and only the rest is asked for."""

import json
import signal
import subprocess
import sys
import threading
import time
import urllib.error
from pathlib import Path

import pytest

from metadr.data import fetch as module
from metadr.errors import UserError

# The package without its __init__, which imports torch: seconds that these processes have no use for.
LIGHT = (
    "import sys, types; sys.modules['metadr'] = types.ModuleType('metadr')\nsys.modules['metadr'].__path__ = [{!r}]\n"
)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_cut_connection_is_resumed(web, server, get, chunked):
    url = server.plan("/a", web.serve(cut=40_000, chunked=chunked), web.serve(cut=20_000), web.serve())
    assert get(url) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=40000-", "bytes=60000-"]


def test_attempts_end_and_the_rest_comes_from_the_next_mirror(web, server, get):
    bad = server.plan("/bad", web.serve(cut=1000, etag='"bad"'))
    good = server.plan("/good", web.serve(etag='"good"'))
    assert get(bad, good, attempts=3) == web.BODY
    assert [path for path, _ in server.requests] == ["/bad"] * 3 + ["/good"]
    assert web.ranges_of(server) == [None, "bytes=1000-", "bytes=2000-", "bytes=3000-"]
    assert "If-Range" in server.requests[2][1] and "If-Range" not in server.requests[3][1]  # the tag is the other's


def test_cut_for_good_keeps_the_part_for_the_next_run(web, server, fails, get):
    url = server.plan("/a", web.serve(cut=1000), web.status(503), web.serve())
    message = fails(url, attempts=1, left=["file.bin.part", "file.bin.part.json"])
    assert "cut the connection after 1000 of 102400 bytes" in message
    assert "The 1000 bytes that arrived are kept for the next attempt." in message
    message = fails(url, attempts=1, left=["file.bin.part", "file.bin.part.json"])
    assert "answered 503 Service Unavailable" in message and "The 1000 bytes" in message
    assert get(url) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=1000-", "bytes=1000-"]


def test_an_attempt_that_gained_much_is_not_counted(web, server, get, monkeypatch):
    monkeypatch.setattr(module, "WORTHWHILE", 1000)
    url = server.plan("/a", *[web.serve(cut=10_000)] * 10, web.serve())
    assert get(url, attempts=2) == web.BODY
    assert len(server.requests) == 11


def test_the_same_bytes_again_are_no_gain(web, server, fails, monkeypatch):
    monkeypatch.setattr(module, "WORTHWHILE", 1000)
    answers = [web.serve(cut=cut, ranges=False) for cut in (5000, 2000, 5000, 2000, 5000)]
    fails(server.plan("/a", *answers), attempts=3, left=["file.bin.part", "file.bin.part.json"])
    assert len(server.requests) == 3


def test_a_mirror_that_was_there_a_moment_ago_is_tried_again(web, server, get, monkeypatch):
    """The network goes and comes back: no connection, where a mirror never reached is given up at once."""
    connected, calls = module._Fetcher.open, []

    def flaky(self, url, headers):
        calls.append(headers)
        if len(calls) == 2:
            raise module._Failed("could not be reached") from urllib.error.URLError("down")
        return connected(self, url, headers)

    monkeypatch.setattr(module._Fetcher, "open", flaky)
    assert get(server.plan("/a", web.serve(cut=1000), web.serve())) == web.BODY
    assert calls == [{}, {"Range": "bytes=1000-"}, {"Range": "bytes=1000-"}]


def test_backoff_doubles(web, server, fails, monkeypatch):
    waits = []
    monkeypatch.setattr(module, "BACKOFF", 2.0)
    monkeypatch.setattr(module.time, "sleep", waits.append)
    assert "broke the connection (" in fails(server.plan("/a", web.hang_up), attempts=7)
    assert waits == [2, 4, 8, 16, 30, 30]
    assert len(server.requests) == 7


def test_ranges_ignored_starts_from_zero(web, server, get):
    assert get(server.plan("/a", web.serve(cut=50_000), web.serve(ranges=False))) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=50000-"]


@pytest.mark.parametrize("given", ["bytes 7-102399/102400", "bytes {first}-{last}/7", "items 1", "bytes 1-2", " "])
def test_a_wrong_range_is_not_appended(web, server, get, given):
    assert get(server.plan("/a", web.serve(cut=1000), web.serve(content_range=given), web.serve())) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=1000-", None]


def test_all_of_the_file_labelled_as_a_range(web, server, get):
    def answer(handler):
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes 0-{len(web.BODY) - 1}/{len(web.BODY)}")
        handler.send_header("Content-Length", str(len(web.BODY)))
        handler.end_headers()
        handler.wfile.write(web.BODY)

    assert get(server.plan("/a", web.serve(cut=1000), answer)) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=1000-"]


def test_ranges_without_a_total(web, server, get):
    assert get(server.plan("/a", web.serve(cut=1000), web.serve(content_range="bytes {first}-{last}/*"))) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=1000-"]


@pytest.mark.parametrize("names", [{"etag": '"one"'}, {"modified": "Mon, 01 Jan 2024 00:00:00 GMT"}])
@pytest.mark.parametrize("conditions", [True, False])
def test_a_file_that_changes_is_not_glued(web, server, get, names, conditions):
    """No checksum to find it out: the server's own marks must. Also where it does not know If-Range."""
    changed = {name: value.replace("one", "two").replace("2024", "2025") for name, value in names.items()}
    url = server.plan("/a", web.serve(cut=50_000, **names), web.serve(web.OTHER, conditions=conditions, **changed))
    assert get(url, checksum=None) == web.OTHER
    assert server.requests[1][1] == {"Range": "bytes=50000-", "If-Range": next(iter(names.values()))}
    assert web.ranges_of(server)[2:] == ([] if conditions else [None])


def test_a_file_that_stays_is_resumed_by_its_mark(web, server, get):
    url = server.plan("/a", web.serve(cut=50_000, etag='"one"'), web.serve(etag='"one"'))
    assert get(url, checksum=None) == web.BODY
    assert server.requests[1][1] == {"Range": "bytes=50000-", "If-Range": '"one"'}


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_mark_and_checksum_nothing_is_resumed(web, server, get, etag):
    url = server.plan("/a", web.serve(cut=50_000, etag=etag), web.serve(web.OTHER, etag=etag))
    assert get(url, checksum=None) == web.OTHER
    assert web.ranges_of(server) == [None, None]


def test_without_checksum_two_mirrors_are_not_glued(web, server, get):
    urls = [server.plan("/a", web.serve(cut=50_000, etag='"1"')), server.plan("/b", web.serve(web.OTHER, etag='"1"'))]
    assert get(*urls, checksum=None, attempts=1) == web.OTHER
    assert web.ranges_of(server) == [None, None]


def test_wrong_bytes_before_a_cut_are_fetched_again(web, server, get):
    """The prefix is wrong, the rest is right: the mirror that sent the rest gets a second chance."""
    urls = [server.plan("/a", web.serve(web.OTHER, cut=50_000)), server.plan("/b", web.serve())]
    assert get(*urls, attempts=2) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=50000-", "bytes=100000-", None]


def test_silence_is_a_lost_connection(web, server, get):
    forever = threading.Event()
    url = server.plan("/a", web.serve(pause=(30_000, forever)), web.serve(pause=(0, forever)), web.serve())
    started = time.monotonic()
    assert get(url, timeout=0.3) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=30000-", "bytes=30000-"]
    assert 0.6 < time.monotonic() - started < 5
    forever.set()


def test_silence_before_the_answer(server, fails):
    forever = threading.Event()
    url = server.plan("/a", lambda handler: forever.wait(20))
    assert "did not answer within 0.2 s" in fails(url, timeout=0.2, attempts=2)
    assert len(server.requests) == 2
    forever.set()


def test_a_drip_is_a_lost_connection(web, server, get):
    """A byte now and then keeps the socket's own timeout from ever ending the wait."""
    slow, good = server.plan("/slow", web.serve(drip=0.05)), server.plan("/good", web.serve())
    started = time.monotonic()
    assert get(slow, good, timeout=0.3, attempts=1) == web.BODY
    assert time.monotonic() - started < 5
    (_, first), (_, second) = server.requests
    assert first == {} and 0 < int(second["Range"].removeprefix("bytes=").rstrip("-")) < 30


def test_an_interrupt_keeps_the_part(web, server, get):
    def interrupt(now):
        if now.received >= 40_000:
            raise KeyboardInterrupt

    url = server.plan("/a", web.serve(cut=40_000, etag='"one"'), web.serve(etag='"one"'))
    with pytest.raises(KeyboardInterrupt):
        get(url, checksum=None, watch=interrupt, left=["file.bin.part", "file.bin.part.json"])
    assert get(url, checksum=None) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=40000-"]


def test_a_part_that_is_whole_needs_no_server(web, get, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(web.BODY)
    assert get("http://nowhere.invalid/x") == web.BODY


@pytest.mark.parametrize("note", ["", "{", "[]", "7", '{"url": 7, "odd": 1}', None])
def test_a_damaged_note(web, server, get, tmp_path, note):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(web.BODY[:700])
    if note is not None:
        (tmp_path / "data" / "file.bin.part.json").write_text(note)
    assert get(server.plan("/a", web.serve())) == web.BODY
    assert web.ranges_of(server) == ["bytes=700-"]
    (tmp_path / "data" / "file.bin").unlink()
    (tmp_path / "data" / "file.bin.part").write_bytes(web.BODY[:700])
    assert get(server.plan("/b", web.serve(etag='"x"')), checksum=None) == web.BODY
    assert web.ranges_of(server)[1:] == [None]


def test_a_part_that_is_too_long(web, server, get, tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file.bin.part").write_bytes(web.BODY + b"more")
    assert get(server.plan("/a", web.serve())) == web.BODY
    assert web.ranges_of(server) == ["bytes=102404-", None]


def test_kill_and_resume(web, server, get, tmp_path):
    """A real process, killed in mid-download: the next one asks for the rest only, and the whole is checked."""
    go_on = threading.Event()
    url = server.plan("/a", web.serve(pause=(60_000, go_on), etag='"one"'), web.serve(etag='"one"'))
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
    assert part.read_bytes() == web.BODY[:60_000]
    note = json.loads(part.with_name("file.bin.part.json").read_text())
    assert note == {"url": url, "etag": '"one"', "modified": None, "total": len(web.BODY)}
    assert get(url, checksum=None) == web.BODY
    assert [headers for _, headers in server.requests] == [{}, {"Range": "bytes=60000-", "If-Range": '"one"'}]
