"""All runs on one page: a list with live curves, and behind each run its report and its viewer."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dasmil.errors import DasmilError
from dasmil.viewer.server import HEADERS, OwnPageOnly, answer_json, create_app, not_found, refused, static_file
from dasmil.viewer.shelf import Shelf

REPORT_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)
"""A report is one file with its own script; in a sandbox it can reach nothing of the viewer."""
OPEN_VIEWERS = 4
"""Viewers of runs that are kept open; more would hold their bags in memory."""
STATIC = {"board.js": "text/javascript", "board.css": "text/css"}


class Starts(Protocol):
    """What starts and stops studies; names are those of the list."""

    def studies(self) -> list[dict[str, Any]]: ...

    def start(self, name: str, resume: bool = False) -> None: ...

    def stop(self, name: str) -> None: ...


class Runs(Protocol):
    """What the page asks for; names are those of the rows. starter: None where the page only reads."""

    @property
    def starter(self) -> Starts | None: ...

    @property
    def title(self) -> str: ...

    def rows(self) -> Sequence[dict[str, Any]]: ...

    def curves(self, name: str) -> dict[str, Any]: ...

    def report(self, name: str) -> bytes: ...

    def shelf(self, name: str) -> Shelf: ...


class RunViewers:
    """The viewer of every run below its own address, opened when it is first asked for."""

    def __init__(self, runs: Runs, port: int) -> None:
        self.runs, self.port = runs, port
        self._open: OrderedDict[str, ASGIApp] = OrderedDict()
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        rest = scope["path"].removeprefix(scope.get("root_path", "")).lstrip("/")
        name, found, inner = rest.partition("/-/")
        if not found:
            await RedirectResponse(f"{scope['path'].rstrip('/')}/-/", 303, HEADERS)(scope, receive, send)
            return
        try:
            app = await run_in_threadpool(self._app, name)
        except DasmilError as error:
            await refused(Request(scope), error)(scope, receive, send)
            return
        await app({**scope, "path": f"/{inner}", "root_path": ""}, receive, send)

    def _app(self, name: str) -> ASGIApp:
        with self._lock:
            if name not in self._open:
                self._open[name] = create_app(self.runs.shelf(name), self.port)
                if len(self._open) > OPEN_VIEWERS:
                    self._open.popitem(last=False)
            self._open.move_to_end(name)
            return self._open[name]


def _starting(starter: Starts) -> list[Route]:
    """The only routes that change something: start, resume and stop a study of the list."""

    def done(change: Callable[[], None]) -> Response:
        change()
        return answer_json({"done": True})

    def name(request: Request) -> str:
        return request.path_params["name"]

    return [
        Route("/api/start/{name:path}", lambda r: done(lambda: starter.start(name(r))), methods=["POST"]),
        Route("/api/resume/{name:path}", lambda r: done(lambda: starter.start(name(r), True)), methods=["POST"]),
        Route("/api/stop/{name:path}", lambda r: done(lambda: starter.stop(name(r))), methods=["POST"]),
    ]


def create_board(runs: Runs, port: int, token: str | None = None) -> Starlette:
    """The application for a folder of runs, to be served at this port of the loopback interface."""

    def report(request: Request) -> Response:
        headers = HEADERS | {"Content-Security-Policy": REPORT_POLICY}
        return Response(runs.report(request.path_params["name"]), media_type="text/html", headers=headers)

    def static(request: Request) -> Response:
        name = request.path_params["name"]
        return static_file(name, STATIC[name]) if name in STATIC else not_found(request, KeyError(name))

    def listed(_request: Request) -> Response:
        studies = None if runs.starter is None else runs.starter.studies()
        return answer_json({"title": runs.title, "runs": list(runs.rows()), "studies": studies})

    routes = [
        Route("/", lambda _request: static_file("board.html", "text/html")),
        Route("/static/{name}", static),
        Route("/api/runs", listed),
        Route("/api/run/{name:path}", lambda request: answer_json(runs.curves(request.path_params["name"]))),
        Route("/report/{name:path}", report),
        Mount("/view", app=RunViewers(runs, port)),
        *([] if runs.starter is None else _starting(runs.starter)),
    ]
    handlers: dict[Any, Any] = {DasmilError: refused, OSError: refused, 404: not_found, 405: not_found}
    return Starlette(
        routes=routes, middleware=[Middleware(OwnPageOnly, port=port, token=token)], exception_handlers=handlers
    )
