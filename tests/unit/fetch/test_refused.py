"""Downloads with something wrong: the file, its length, the request, or the place to put it."""

import os
import resource
from types import SimpleNamespace

import pytest

from metadr.data import fetch as module
from metadr.data.fetch import fetch
from metadr.data.remote import RemoteFile
from metadr.errors import UserError


def test_a_wrong_checksum_everywhere(web, server, fails):
    urls = [server.plan("/a", web.serve(web.OTHER)), server.plan("/b", web.serve(web.BODY + b"x"))]
    message = fails(*urls)
    assert f"sent {web.sha256(web.OTHER)} instead of {web.sha256(web.BODY)}; " in message
    assert f"sent {web.sha256(web.BODY + b'x')} instead of {web.sha256(web.BODY)}" in message
    assert [path for path, _ in server.requests] == ["/a", "/b"]


def test_a_wrong_checksum_then_the_next_mirror(web, server, get):
    assert get(server.plan("/a", web.serve(web.OTHER)), server.plan("/b", web.serve())) == web.BODY
    assert server.requests == [("/a", {}), ("/b", {})]  # from the first byte


@pytest.mark.parametrize("size", [102_399, 102_401])
def test_a_wrong_size_is_refused_before_the_first_byte(web, server, fails, size):
    said = f"has a file of {len(web.BODY)} bytes instead of {size}"
    assert said in fails(server.plan("/a", web.serve()), checksum=None, size=size)
    assert len(server.requests) == 1


def test_more_than_there_should_be(web, server, fails):
    url = server.plan("/a", web.serve(chunked=True))
    assert "sent more than the 1000 bytes there should be" in fails(url, checksum=None, size=1000)


def test_a_length_that_is_too_long(web, server, get):
    url = server.plan("/a", web.serve(length=len(web.BODY) + 500))
    assert get(url) == web.BODY  # the checksum says that it is whole
    assert web.ranges_of(server) == [None]


def test_a_length_that_is_too_long_without_checksum(web, server, fails):
    url = server.plan("/a", web.serve(length=len(web.BODY) + 500, etag='"1"'))
    message = fails(url, checksum=None, left=["file.bin.part", "file.bin.part.json"])
    assert f"cut the connection after {len(web.BODY)} of {len(web.BODY) + 500} bytes" in message
    assert len(server.requests) == 5  # two of three attempts ask for the rest first, and learn that there is none


def test_a_length_that_is_too_short(web, server, get, fails):
    url = server.plan("/a", web.serve(length=len(web.BODY) - 500))
    assert f"sent {web.sha256(web.BODY[:-500])} instead of" in fails(url)
    assert f"has a file of {len(web.BODY) - 500} bytes" in fails(url, checksum=None, size=len(web.BODY))
    assert get(url, server.plan("/b", web.serve())) == web.BODY


def test_no_length(web, server, get, fails, tmp_path):
    url = server.plan("/a", web.serve(length="none"))
    assert "does not say how long" in fails(url, checksum=None)
    assert get(url) == web.BODY
    (tmp_path / "data" / "file.bin").unlink()
    assert get(url, checksum=None, size=len(web.BODY)) == web.BODY
    (tmp_path / "data" / "file.bin").unlink()
    cut = server.plan("/cut", web.serve(length="none", cut=9), web.serve(length="none"))
    assert get(cut, checksum=None, size=len(web.BODY)) == web.BODY


def test_a_web_page_instead_of_the_file(web, server, get, fails):
    page = web.serve(b"<!doctype html>Quota exceeded", kind="text/html; charset=utf-8")
    assert "sent a web page instead of the file" in fails(server.plan("/a", page), checksum=None)
    assert get(server.plan("/b", page), name="page.html", checksum=None).startswith(b"<!doctype")


@pytest.mark.parametrize(
    "url", ["ftp://host/x", "file:///etc/passwd", "data:,x", "//host/x", "host/x", "http://", "http:///x", ""]
)
def test_other_urls_are_refused_before_anything_is_done(web, server, tmp_path, url):
    files = [RemoteFile("good", (server.plan("/a", web.serve()),)), RemoteFile("bad", (url,))]
    with pytest.raises(UserError, match=r"^The address of bad must begin with http:// or https://\. Got "):
        fetch(files, tmp_path / "data", hint=web.HINT)
    assert server.requests == [] and not (tmp_path / "data").exists()


@pytest.mark.parametrize("checksum", ["abc", "md5:xyz", "sha1:" + "0" * 40, "sha256:" + "0" * 63])
def test_a_checksum_must_be_one(web, tmp_path, checksum):
    with pytest.raises(UserError, match=f"^The checksum of f must be .* Got '{checksum}' instead"):
        fetch([RemoteFile("f", ("http://host/x",), checksum)], tmp_path, hint=web.HINT)


@pytest.mark.parametrize("name", ["", ".", "/etc/x", "../x", "a/../../x"])
def test_a_name_must_stay_inside(web, tmp_path, name):
    with pytest.raises(UserError, match="must be a path inside its folder"):
        fetch([RemoteFile(name, ("http://host/x",))], tmp_path / "data", hint=web.HINT)
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_said_before_the_download(web, server, get, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    with pytest.raises(UserError, match=r"102400 bytes are missing and .* has room for 100000\. Make room"):
        get(server.plan("/a", web.serve()))
    assert len(server.requests) == 1


def test_no_room_in_the_middle(web, server, get):
    url = server.plan("/a", web.serve())
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, before[1]))
    try:
        with pytest.raises(UserError, match=r"Cannot write .*file.bin.part: File too large\. What has arrived"):
            get(url, left=["file.bin.part", "file.bin.part.json"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert get(url) == web.BODY
    assert web.ranges_of(server) == [None, "bytes=50000-"]


def test_a_folder_that_cannot_be_written(web, server, tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    file = RemoteFile("f", (server.plan("/a", web.serve()),))
    for folder, said in [(tmp_path / "taken", "File exists"), (tmp_path / "taken" / "x", "Not a directory")]:
        with pytest.raises(UserError, match=rf"^Cannot write {folder}/f.part: {said}\. .* run the same command again"):
            fetch([file], folder, hint=web.HINT)
    (tmp_path / "f").mkdir()
    with pytest.raises(UserError, match=r"is not a file\. Move it away"):
        fetch([file], tmp_path, hint=web.HINT)
    assert server.requests == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(web, server, tmp_path):
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(UserError, match="Permission denied"):
        fetch([RemoteFile("f", (server.plan("/a", web.serve()),))], tmp_path / "data", hint=web.HINT)
    assert server.requests == []
