"""Downloads: resumed where they were cut, checked while they arrive, in place only once they are whole.

A file on its way is a part (part.py), which goes when it is whole.
"""

import http.client
import logging
import re
import shutil
import string
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from http import HTTPStatus
from pathlib import Path, PurePosixPath
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from metadr.data.part import Origin, PartialFile, checksum_of, claimed, told
from metadr.data.remote import RemoteFile
from metadr.errors import UserError

log = logging.getLogger("metadr")

CHUNK = 1 << 18  # bytes asked of a connection at once; it gives what it has
BACKOFF = 1.0  # seconds before the second attempt at a mirror; doubles with each failure, up to MAX_BACKOFF
MAX_BACKOFF = 30.0
SLOWEST = 100  # bytes per second, over one timeout: below it a connection counts as stalled
WORTHWHILE = 1 << 20  # bytes: an attempt that gains as many does not use up the attempts at its mirror
SHOW_EVERY = 0.1  # seconds between two calls of `watch`


class Download(NamedTuple):
    """Where a download stands."""

    name: str
    received: int
    """In bytes, with those of earlier attempts."""
    total: int | None
    """In bytes, where known."""
    mirror: str
    """The host it comes from."""
    bytes_per_second: float
    """Since the connection was made."""


class Span(NamedTuple):
    """Which bytes of a file an answer holds."""

    first: int
    stop: int | None
    """One past the last; none where the answer goes on until it ends."""
    total: int | None
    """Of the whole file."""


class _Failed(Exception):
    """What a mirror did instead of sending the file. `again`: it may do better if asked once more."""

    def __init__(self, answer: str, *, again: bool = False) -> None:
        super().__init__(answer)
        self.again = again


def fetch(
    files: Sequence[RemoteFile],
    folder: Path,
    *,
    hint: str,
    watch: Callable[[Download], None] | None = None,
    timeout: float = 30,
    attempts: int = 3,
) -> list[Path]:
    """Download what is missing and return where each file is. Those that are there and right are kept.

    Args:
        hint: A sentence on how to get the files by hand; it ends the error when no mirror has one.
        watch: Called with the standing of the download, some ten times a second.
        timeout: Seconds of silence after which a connection counts as lost.
        attempts: How often a mirror whose connection breaks is tried before the next one.
    """
    for file in files:
        _check(file)
    return [_Fetcher(file, folder, watch, timeout, attempts).fetch(hint) for file in files]


class _Fetcher(NamedTuple):
    """One file and how to ask for it."""

    file: RemoteFile
    folder: Path
    watch: Callable[[Download], None] | None
    timeout: float
    attempts: int

    @property
    def target(self) -> Path:
        return self.folder / self.file.name

    def fetch(self, hint: str) -> Path:
        if self.flaw() is None:
            return self.target
        kind = self.file.checksum.partition(":")[0] if self.file.checksum else "sha256"
        with claimed(self.target, kind) as part:
            try:
                flaw = self.flaw()
                if flaw is None:  # another process was faster
                    part.discard()
                    return self.target
                if self.target.exists():  # it stays until a right one takes its place: it may be all there is
                    log.warning("%s %s: downloading it again.", self.target, flaw)
                self.ask_all(part, hint)
                part.finish()
            finally:
                if not part.length:
                    part.discard()
        return self.target

    def flaw(self) -> str | None:
        """What is wrong with the file in place, or none."""
        with told(self.target, "read"):
            if not self.target.exists():
                return "is missing"
            size = self.target.stat().st_size
        if not self.target.is_file():
            raise UserError(f"{self.target} is not a file. Move it away, then run the same command again.")
        if self.file.size is not None and size != self.file.size:
            return f"has {size} bytes instead of {self.file.size}"
        if self.file.checksum:
            wanted = self.file.checksum.lower()
            found = checksum_of(self.target, wanted.partition(":")[0])
            return None if found == wanted else f"has {found} instead of {wanted}"
        return None

    def ask_all(self, part: PartialFile, hint: str) -> None:
        """Get the file from the first mirror that has it."""
        answers = []
        for url in self.file.urls:
            try:
                self.ask(url, part)
                return
            except _Failed as failure:
                answers.append(f"{_host(url)} {failure}")
        said = "; ".join(answers) or "it has no public address"
        kept = f" The {part.length} bytes that arrived are kept for the next attempt." if part.length else ""
        raise UserError(f"Cannot download {self.file.name}: {said}.{kept} {hint}".rstrip())

    def ask(self, url: str, part: PartialFile) -> None:
        """Get the file from one mirror, in as many attempts as it deserves."""
        failures, best, reached = 0, part.length, False
        while True:
            try:
                self.attempt(url, part)
                return
            except _Failed as failure:
                gained, best = part.length - best, max(part.length, best)
                failures = 1 if gained >= WORTHWHILE else failures + 1
                reached = reached or failure.again
                # A mirror that cannot be connected to is given up at once, unless it could be a moment ago.
                broken = failure.again or (reached and isinstance(failure.__cause__, urllib.error.URLError))
                if not broken or failures >= self.attempts:
                    raise
            time.sleep(min(BACKOFF * 2 ** (failures - 1), MAX_BACKOFF))

    def attempt(self, url: str, part: PartialFile) -> None:
        """One connection: ask for what is missing, receive it, check the whole."""
        wanted = self.file.checksum.lower() if self.file.checksum else None
        if wanted and part.length and part.checksum == wanted:
            return  # whole already: killed before its last step, or the server promised more than there is
        response, span = self.connect(url, part)
        with response:
            total = self.prepare(url, part, response, span)
            self.receive(url, part, response, total, span.stop)
        if total is not None and part.length < total:
            raise _Failed(f"cut the connection after {part.length} of {total} bytes", again=True)
        if total is not None and part.length > total:
            part.clear()
            raise _Failed(f"sent more than the {total} bytes there should be")
        if wanted and part.checksum != wanted:
            # The bytes of earlier attempts may be what is wrong: then this mirror may have the right ones.
            failure = _Failed(f"sent {part.checksum} instead of {wanted}", again=part.resumed)
            part.clear()
            raise failure

    def connect(self, url: str, part: PartialFile) -> tuple[http.client.HTTPResponse, Span]:
        """Ask for the bytes that are missing, or for all where those cannot be joined to the ones that are there."""
        origin = part.origin
        validator = origin.validator if origin and origin.url == url else None
        if part.length and (validator or self.file.checksum):
            condition = {"If-Range": validator} if validator else {}
            response = self.open(url, {"Range": f"bytes={part.length}-"} | condition)
            span = _span(response)
            if span and span.first == 0:  # it ignores ranges, or the file has changed
                return response, span
            changed = origin and span and origin.contradicts(_origin(url, response, span))
            if span and span.first == part.length and not changed:
                return response, span
            response.close()
        response = self.open(url, {})
        span = _span(response)
        if not span or span.first:
            response.close()
            raise _Failed(_answered(response.status))
        return response, span

    def open(self, url: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        # Content-Encoding is not undone: none is accepted, and some servers label .gz files with it.
        request = urllib.request.Request(quote(url, safe=string.punctuation), headers=headers)
        request.add_header("User-Agent", "metadr")
        try:
            response: http.client.HTTPResponse = _opener().open(request, timeout=self.timeout)
            return response
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and headers:
                return self.open(url, {})
            raise _Failed(_answered(error.code)) from None
        except urllib.error.URLError as error:
            lost = isinstance(error.reason, ConnectionResetError | BrokenPipeError)
            raise _Failed(f"could not be reached ({_reason(error.reason)})", again=lost) from error
        except TimeoutError:
            raise _Failed(f"did not answer within {self.timeout:g} s", again=True) from None
        except (http.client.InvalidURL, ValueError):
            raise _Failed("leads to an address that is not valid") from None
        except (OSError, http.client.HTTPException) as error:
            raise _Failed(f"broke the connection ({_reason(error)})", again=True) from None

    def prepare(self, url: str, part: PartialFile, response: http.client.HTTPResponse, span: Span) -> int | None:
        """Decide from the headers whether to take the answer, and where it goes. Returns the size of the file."""
        size = self.file.size
        if size is not None and span.total not in (None, size):
            raise _Failed(f"has a file of {span.total} bytes instead of {size}")
        total = span.total if size is None else size
        if not self.file.checksum:
            is_page = response.headers.get_content_type() == "text/html"
            if is_page and not PurePosixPath(self.file.name).suffix.startswith(".htm"):
                raise _Failed("sent a web page instead of the file")
            if total is None and not response.chunked:
                raise _Failed("does not say how long the file is, so that a cut would go unnoticed")
        origin = _origin(url, response, span)
        if span.first:
            part.resumed = True
            part.describe(origin)
        else:
            part.begin(origin)
        with told(part.path):
            free = shutil.disk_usage(part.path.parent).free
        if total is not None and total - part.length > free:
            raise UserError(
                f"Cannot download {self.file.name}: {total - part.length} bytes are missing and {self.folder} has room "
                f"for {free}. Make room or choose another folder, then run the same command again."
            )
        return total

    def receive(
        self, url: str, part: PartialFile, response: http.client.HTTPResponse, total: int | None, stop: int | None
    ) -> None:
        """Append what arrives, up to byte `stop` or, where that is not known, to the end."""
        start = shown = window = time.monotonic()
        first = in_window = part.length

        def show(now: float) -> None:
            if self.watch:
                speed = (part.length - first) / max(now - start, 1e-3)
                self.watch(Download(self.file.name, part.length, total, _host(url), speed))

        show(start)
        while stop is None or part.length < stop:
            try:
                # read1 gives what is there, where read would wait for all of it and hide a slow connection.
                # The count is bounded here: before Python 3.12, read1 runs past the Content-Length.
                data = response.read1(CHUNK if stop is None else min(CHUNK, stop - part.length))
            except TimeoutError:
                raise _Failed(f"fell silent for {self.timeout:g} s after {part.length} bytes", again=True) from None
            except (OSError, http.client.HTTPException) as error:
                message = f"broke the connection after {part.length} bytes ({_reason(error)})"
                raise _Failed(message, again=True) from None
            if not data:
                break
            part.append(data)
            now = time.monotonic()
            if now - window >= self.timeout:
                if part.length - in_window < SLOWEST * self.timeout:
                    raise _Failed(f"sends less than {SLOWEST} bytes per second", again=True)
                window, in_window = now, part.length
            if now - shown >= SHOW_EVERY:
                shown = now
                show(now)
            if total is not None and part.length > total:
                break
        show(time.monotonic())


def _check(file: RemoteFile) -> None:
    path = PurePosixPath(file.name)
    if not path.name or path.is_absolute() or ".." in path.parts:
        raise UserError(f"The name of a file to download must be a path inside its folder. Got '{file.name}' instead.")
    if file.checksum and not re.fullmatch(r"md5:[0-9a-fA-F]{32}|sha256:[0-9a-fA-F]{64}", file.checksum):
        raise UserError(
            f"The checksum of {file.name} must be 'md5:' and 32 or 'sha256:' and 64 hexadecimal digits. "
            f"Got '{file.checksum}' instead."
        )
    for url in file.urls:
        if not re.match(r"https?://[^/?#]", url, re.IGNORECASE):
            raise UserError(f"The address of {file.name} must begin with http:// or https://. Got '{url}' instead.")


def _opener() -> urllib.request.OpenerDirector:
    """HTTP, HTTPS, redirects and the system's proxies: unlike urlopen, no redirect leads to ftp, files or data."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    return opener


def _span(response: http.client.HTTPResponse) -> Span | None:
    if response.status == HTTPStatus.OK:
        return Span(0, response.length, response.length)
    found = re.fullmatch(
        r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", (response.headers["Content-Range"] or "").strip()
    )
    if response.status != HTTPStatus.PARTIAL_CONTENT or not found:
        return None
    return Span(int(found[1]), int(found[2]) + 1, None if found[3] == "*" else int(found[3]))


def _origin(url: str, response: http.client.HTTPResponse, span: Span) -> Origin:
    return Origin(url, response.headers["ETag"], response.headers["Last-Modified"], span.total)


def _host(url: str) -> str:
    return urlsplit(url).netloc.rpartition("@")[2]


def _answered(status: int) -> str:
    try:
        return f"answered {status} {HTTPStatus(status).phrase}"
    except ValueError:
        return f"answered {status}"


def _reason(error: object) -> str:
    """The system's words for an error, on one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())[:120]
