"""Serves a shelf on this machine until it is stopped."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from dasmil.errors import InputError
from dasmil.viewer.board import Runs, create_board
from dasmil.viewer.server import create_app
from dasmil.viewer.shelf import Shelf

PATIENCE_S = 30.0
"""A connection that sends no whole request for so long is closed."""


class Impatient(H11Protocol):
    """Closes connections that are opened and then left without a whole request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        super().connection_made(transport)
        self.loop.call_later(PATIENCE_S, self._close_idle, None)

    def _close_idle(self, answered: object) -> None:
        """answered: the request that was the last one when it was looked at before."""
        if self.transport.is_closing():
            return
        if self.cycle is answered and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()
        else:
            self.loop.call_later(PATIENCE_S, self._close_idle, self.cycle)


def serve(shelf: Shelf, port: int, open_browser: bool, ready: Callable[[str], None]) -> None:
    """Serve a shelf on the loopback interface until Ctrl-C; ``ready`` is called with the address once it answers."""
    serve_app(lambda port, token: create_app(shelf, port, token), port, open_browser, ready)


def serve_runs(runs: Runs, port: int, open_browser: bool, ready: Callable[[str], None]) -> None:
    """As ``serve``, the page of all runs below a folder."""
    serve_app(lambda port, token: create_board(runs, port, token), port, open_browser, ready)


def serve_app(
    make: Callable[[int, str], Starlette], port: int, open_browser: bool, ready: Callable[[str], None]
) -> None:
    """Serve what ``make`` gives for a port and the token that opens it."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # the address answers as soon as it is printed
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0") from error
    port = listener.getsockname()[1]
    token = secrets.token_urlsafe(18)
    url = f"http://127.0.0.1:{port}/?token={token}"
    desktop = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    ready(url)
    if open_browser and desktop:
        threading.Timer(0.7, webbrowser.open, [url]).start()
    app = make(port, token)
    server = uvicorn.Server(uvicorn.Config(app, http=Impatient, ws="none", log_level="warning", access_log=False))
    server.run(sockets=[listener])
