"""A web server that answers as told: whole, cut, slowly, wrongly or not at all.

`conftest.py` loads this file and hands it to the tests as the fixture `web`; no test module imports it.
"""

import hashlib
import re
import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

BODY = bytes(range(256)) * 400  # 102,400 bytes
OTHER = BODY[::-1]
SUM = f"sha256:{hashlib.sha256(BODY).hexdigest()}"
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


def ranges_of(server):
    return [headers.get("Range") for _, headers in server.requests]
