"""Downloads that come whole: mirrors, redirects, files that are there already, other processes."""

import fcntl
import hashlib
import logging
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from metadr.data import fetch as module
from metadr.data.fetch import fetch
from metadr.data.part import checksum_of
from metadr.data.remote import RemoteFile
from metadr.errors import UserError

SUM = "sha256:27783e87963a4efb6829b531c9ba57b44f45797f6770bd637fbf0d807cbdbae0"  # of web.BODY


@pytest.mark.parametrize("checksum", [None, SUM, SUM.upper().replace("SHA", "sha"), "md5"])
@pytest.mark.parametrize("size", [None, 102_400])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_plain_download(web, server, get, checksum, size, chunked):
    checksum = f"md5:{hashlib.md5(web.BODY).hexdigest()}" if checksum == "md5" else checksum
    url = server.plan("/a", web.serve(chunked=chunked))
    assert get(url, name="sub/folder/file.bin", checksum=checksum, size=size) == web.BODY
    assert server.requests == [("/a", {})]


def test_an_empty_file(web, server, get):
    assert get(server.plan("/a", web.serve(b"")), checksum=web.sha256(b""), size=0) == b""


def test_several_files_and_those_that_are_there(web, server, tmp_path):
    names = ["a", "b", "c"]
    files = [
        RemoteFile(n, (server.plan(f"/{n}", web.serve(n.encode() * 99)),), web.sha256(n.encode() * 99)) for n in names
    ]
    (tmp_path / "b").write_bytes(b"b" * 99)
    inode = (tmp_path / "b").stat().st_ino
    assert fetch(files, tmp_path, hint=web.HINT) == [tmp_path / n for n in names]
    assert [path for path, _ in server.requests] == ["/a", "/c"]
    assert fetch(files, tmp_path, hint=web.HINT) == [tmp_path / n for n in names]
    assert len(server.requests) == 2
    assert (tmp_path / "b").stat().st_ino == inode
    assert sorted(path.name for path in tmp_path.iterdir()) == names


def test_a_file_that_is_there_without_known_checksum(web, server, tmp_path):
    url = server.plan("/a", web.serve())
    (tmp_path / "a").write_bytes(b"mine")
    fetch([RemoteFile("a", (url,))], tmp_path, hint=web.HINT)
    fetch([RemoteFile("a", (url,), size=4)], tmp_path, hint=web.HINT)
    assert (tmp_path / "a").read_bytes() == b"mine" and server.requests == []
    fetch([RemoteFile("a", (url,), size=len(web.BODY))], tmp_path, hint=web.HINT)
    assert (tmp_path / "a").read_bytes() == web.BODY


def test_a_wrong_file_stays_until_a_right_one_comes(web, server, tmp_path, caplog):
    (tmp_path / "a").write_bytes(b"wrong")
    file = RemoteFile("a", (server.plan("/a", web.status(404), web.serve()),), web.sha256(web.BODY))
    with caplog.at_level(logging.WARNING, "metadr"), pytest.raises(UserError, match="answered 404 Not Found"):
        fetch([file], tmp_path, hint=web.HINT)
    assert web.sha256(b"wrong") in caplog.text and web.sha256(web.BODY) in caplog.text
    assert (tmp_path / "a").read_bytes() == b"wrong"
    fetch([file], tmp_path, hint=web.HINT)
    assert (tmp_path / "a").read_bytes() == web.BODY
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("code", [400, 403, 404, 410, 429, 500, 502, 503])
def test_the_next_mirror(web, server, get, code):
    bad, good = server.plan("/bad", web.status(code)), server.plan("/good", web.serve())
    assert get(bad, good) == web.BODY
    assert [path for path, _ in server.requests] == ["/bad", "/good"]  # asked once each


def test_no_mirror(web, server, fails):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    urls = [server.plan(f"/{code}", web.status(code)) for code in (404, 403, 500)]
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


def test_redirects(web, server, get, fails):
    server.plan("/there", web.serve(cut=1000), web.serve())
    url = server.plan("/here", web.status(302, "/over"))
    server.plan("/over", web.status(307, "/there"))
    assert get(url) == web.BODY
    paths = [path for path, _ in server.requests]
    assert paths == ["/here", "/over", "/there"] * 2
    assert web.ranges_of(server) == [None] * 3 + ["bytes=1000-"] * 3


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
def test_redirects_to_nowhere(web, server, fails, location, said):
    assert said in fails(server.plan("/here", web.status(302, location)))


def test_watch(web, server, get, monkeypatch):
    monkeypatch.setattr(module, "SHOW_EVERY", 0.0)
    seen = []
    url = server.plan("/a", web.serve(cut=40_000), web.serve())
    assert get(url, watch=seen.append) == web.BODY
    received = [now.received for now in seen]
    assert received[0] == 0 and received[-1] == len(web.BODY) and 40_000 in received
    assert received == sorted(received)
    assert {(now.name, now.total, now.mirror) for now in seen} == {("file.bin", len(web.BODY), server.host)}
    assert seen[-1].bytes_per_second > 0


def test_a_second_process_is_told(web, server, get, tmp_path):
    (tmp_path / "data").mkdir()
    part = tmp_path / "data" / "file.bin.part"
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(UserError, match=r"file\.bin is being downloaded by another process\. Wait for it"):
            get(server.plan("/a", web.serve()), left=["file.bin.part"])
    assert server.requests == []
    assert get(server.plan("/a", web.serve())) == web.BODY


def test_another_process_was_faster(web, server, get, monkeypatch):
    claimed = module.claimed

    @contextmanager
    def late(target, kind):
        target.parent.mkdir()
        target.with_name("file.bin.part").write_bytes(b"old")
        with claimed(target, kind) as part:
            target.write_bytes(web.BODY)
            yield part

    monkeypatch.setattr(module, "claimed", late)
    assert get(server.plan("/a", web.serve())) == web.BODY
    assert server.requests == []


def test_two_at_once(web, server, tmp_path):
    """Each either has the whole file or is told of the other; the file is downloaded once."""
    go_on = threading.Event()
    file = RemoteFile("f", (server.plan("/a", web.serve(pause=(50_000, go_on))),), web.sha256(web.BODY))
    results = []

    def one():
        try:
            results.append(fetch([file], tmp_path, hint=web.HINT))
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


def test_checksum_of(web, tmp_path):
    (tmp_path / "f").write_bytes(web.BODY)
    assert checksum_of(tmp_path / "f") == web.sha256(web.BODY)
    assert checksum_of(tmp_path / "f", "md5") == f"md5:{hashlib.md5(web.BODY).hexdigest()}"
    with pytest.raises(UserError, match=r"^Cannot read .*: No such file or directory"):
        checksum_of(tmp_path / "missing")
