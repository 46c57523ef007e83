"""Serves a shelf on this machine until it is stopped."""

from __future__ import annotations

import os
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from dasmil.errors import InputError
from dasmil.viewer.server import create_app
from dasmil.viewer.shelf import Shelf


def serve(shelf: Shelf, port: int, open_browser: bool, ready: Callable[[str], None]) -> None:
    """Serve a shelf on the loopback interface until Ctrl-C; ``ready`` is called with the address once it answers."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)  # the address answers as soon as it is printed
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({error.strerror}): choose another with --port, or 0") from error
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    desktop = sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
    ready(url)
    if open_browser and desktop:
        threading.Timer(0.7, webbrowser.open, [url]).start()
    server = uvicorn.Server(uvicorn.Config(create_app(shelf, port), log_level="warning", access_log=False))
    server.run(sockets=[listener])
