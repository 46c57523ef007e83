"""Only the printed address opens the viewer, and connections that say nothing are closed."""

from __future__ import annotations

import http.client
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

CODE = """
import torch
from dasmil.models import create_model
from dasmil.types import Bag
from dasmil.viewer import serving
from dasmil.viewer.shelf import Entry, Shelf
serving.PATIENCE_S = 1.0
bag = Bag(torch.randn(5, 4), torch.rand(5, 2), "um", "a")
shelf = Shelf("x", "y", create_model("mean-pool", in_features=4), [Entry("a", lambda: bag)])
serving.serve(shelf, 0, False, lambda url: print(url, flush=True))
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    process = subprocess.Popen([sys.executable, "-c", CODE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    process.wait(timeout=60)


def ask(address: str, path: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=60)
    connection.request("GET", path, headers=headers)
    return connection.getresponse()


def test_only_the_token_opens_the_page(address: str) -> None:
    token = urlsplit(address).query
    assert re.fullmatch(r"token=[\w-]{24}", token)
    for path in ("/", "/api/bags", "/static/app.js", f"/?{token[:-1]}", "/?token=", "/api/bag/0?token=%C3%A9"):
        assert ask(address, path).status == 403
    assert ask(address, "/", Cookie="dasmil-1=x").status == 403
    first = ask(address, f"/?{token}&other=1")
    assert (first.status, first.getheader("Location")) == (303, "/?other=1")
    cookie = first.getheader("Set-Cookie") or ""
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")[1:]}
    known = cookie.split(";")[0]
    assert ask(address, "/", Cookie=known).status == 200
    assert ask(address, "/api/bags", Cookie=known).status == 200
    assert ask(address, "/", Cookie=known, Host="evil.example").status == 403


def test_connections_that_send_no_whole_request_are_closed(address: str) -> None:
    parts = urlsplit(address)
    for sent in (b"", b"GET / HTTP/1.1\r\nHost: x"):
        with socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as half:
            half.sendall(sent)
            assert half.recv(1000) == b""
    assert ask(address, f"/?{parts.query}").status == 303
