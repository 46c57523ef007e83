"""The viewer's server: loopback only, fixed routes, no path of the disk ever comes from a request."""

from __future__ import annotations

import hmac
import io
import math
import re
from collections.abc import Callable, Iterator
from importlib import resources
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dasmil.attribution.export import geojson, instances_csv
from dasmil.errors import DasmilError, DataError
from dasmil.report.explanation.heatmap import colours_of
from dasmil.types import Bag, Explanation
from dasmil.viewer import answers, figure
from dasmil.viewer.answers import TILE, levels
from dasmil.viewer.shelf import OpenBag, Shelf

STATIC = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "panel.js": "text/javascript",
    "overlay.js": "text/javascript",
    "address.js": "text/javascript",
    "annotations.js": "text/javascript",
    "api.js": "text/javascript",
    "colour.js": "text/javascript",
    "compare.js": "text/javascript",
    "heatmap.js": "text/javascript",
    "save.js": "text/javascript",
    "state.js": "text/javascript",
    "tools.js": "text/javascript",
    "format.js": "text/javascript",
    "regions.js": "text/javascript",
    "whatif.js": "text/javascript",
    "openseadragon.js": "text/javascript",
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

LONGEST = 2000


class OwnPageOnly:
    """Refuses requests that another host name or another site's page makes (DNS rebinding, cross-site reads).

    token: a secret of the address that was printed, which keeps other users of the machine out. The first request with
    it gets a cookie, and the address without it.
    """

    def __init__(self, app: ASGIApp, port: int, token: str | None = None) -> None:
        self.app = app
        self.token = token
        self.cookie = f"dasmil-{port}"  # cookies do not tell ports apart
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        names = [name for name, _ in scope["headers"]]
        origin = headers.get(b"origin")
        allowed = headers.get(b"host") in self.hosts
        allowed &= all(names.count(name) <= 1 for name in (b"host", b"origin", b"sec-fetch-site"))
        allowed &= headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        allowed &= origin is None or origin.removeprefix(b"http://") in self.hosts
        if not allowed:
            reason = "This viewer answers only its own page, opened at the address it printed."
            await JSONResponse({"error": reason}, status_code=403, headers=HEADERS)(scope, receive, send)
            return
        if len(scope["path"]) > LONGEST:  # a number of thousands of digits cannot even be read
            await JSONResponse({"error": "The address is too long."}, 414, HEADERS)(scope, receive, send)
            return
        refused = self._let_in(Request(scope))
        await (self.app if refused is None else refused)(scope, receive, send)

    def _let_in(self, request: Request) -> Response | None:
        """None for a request that knows the token by its cookie; else an answer that sets it, or that refuses."""
        if self.token is None or _equal(request.cookies.get(self.cookie), self.token):
            return None
        if not _equal(request.query_params.get("token"), self.token):
            reason = "Open the viewer at the whole address that it printed, with its token."
            return JSONResponse({"error": reason}, status_code=403, headers=HEADERS)
        rest = request.url.remove_query_params("token")
        found = RedirectResponse(f"{rest.path}?{rest.query}" if rest.query else rest.path, 303, HEADERS)
        found.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
        return found


def _equal(found: str | None, token: str) -> bool:
    return found is not None and hmac.compare_digest(found.encode(), token.encode())


def create_app(shelf: Shelf, port: int, token: str | None = None) -> Starlette:
    """The application for one shelf, to be served at this port of the loopback interface; token: needed to open it."""
    bag = "/api/bag/{index:int}"
    routes = [
        Route("/", lambda _request: static_file("index.html", "text/html")),
        Route("/static/{name}", _serve_static),
        Route("/api/bags", lambda _request: answer_json(answers.bag_list(shelf))),
        Route(bag, lambda r: answer_json(answers.describe(shelf, _index(r), _voice(r), _edits(r)))),
        Route(f"{bag}/account", lambda r: answer_json(answers.account(shelf, _index(r), _voice(r), _edits(r)))),
        Route(f"{bag}/coords", lambda r: _floats(torch.from_numpy(_opened(shelf, r).layout.centres))),
        Route(
            f"{bag}/score/{{name}}", lambda r: _floats(answers.score(shelf, _index(r), _voice(r), _name(r), _edits(r)))
        ),
        Route(f"{bag}/group/{{name}}", lambda r: _floats(answers.group_index(_opened(shelf, r), _name(r)))),
        Route(f"{bag}/names", lambda r: answer_json({"names": list(_opened(shelf, r).bag.instance_ids or ())})),
        Route(f"{bag}/numbers", lambda r: _floats(answers.numbers_before(_opened(shelf, r)))),
        Route(
            f"{bag}/partners/{{instance:int}}",
            lambda r: answer_json(answers.instance(shelf, _index(r), _voice(r), r.path_params["instance"], _edits(r))),
        ),
        Route(f"{bag}/instance/{{instance:int}}", lambda r: _instance_picture(shelf.open(_index(r)), r)),
        Route(f"{bag}/picture/{{level:int}}/{{x:int}}/{{y:int}}", lambda r: _tile(shelf.open(_index(r)), r)),
        Route(f"{bag}/figure.{{kind}}", lambda r: _figure(shelf, r)),
        Route(f"{bag}/instances.csv", lambda r: _download(shelf, r, instances_csv, "text/csv")),
        Route(f"{bag}/instances.geojson", lambda r: _download(shelf, r, _coloured, "application/geo+json")),
    ]
    handlers: dict[Any, Any] = {DasmilError: refused, OSError: refused, 404: not_found, 405: not_found}
    return Starlette(
        routes=routes, middleware=[Middleware(OwnPageOnly, port=port, token=token)], exception_handlers=handlers
    )


def refused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422, headers=HEADERS)


def not_found(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "There is nothing at this address."}, status_code=404, headers=HEADERS)


def _index(request: Request) -> int:
    return request.path_params["index"]


def _name(request: Request) -> str:
    return request.path_params["name"]


def _edits(request: Request) -> str:
    """What is tried on the bag: see `dasmil.attribution.edits`."""
    return request.query_params.get("edits", "")


def _opened(shelf: Shelf, request: Request) -> OpenBag:
    return shelf.open(_index(request), _edits(request))


def _voice(request: Request) -> int | None:
    """The number of the model that is asked, if the request names one."""
    text = request.query_params.get("voice")
    if text is None:
        return None
    if not text.isdecimal() or len(text) > 6:
        raise DasmilError(f"the model is {text!r}, expected its number")
    return int(text)


def answer_json(content: dict) -> Response:
    try:
        return JSONResponse(content, headers=HEADERS)
    except ValueError:  # JSON has no words for them, and the page could not draw them
        raise DataError(
            "what the model says of this bag is infinite or no number: its weights are damaged, or the bag's features "
            "or positions are NaN or too large"
        ) from None


def _floats(values: torch.Tensor) -> Response:
    body = values.detach().to(torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return Response(body, media_type="application/octet-stream", headers=HEADERS)


def static_file(name: str, media_type: str) -> Response:
    body = resources.files("dasmil.viewer").joinpath("static", name).read_bytes()
    return Response(body, media_type=media_type, headers=HEADERS)


def _serve_static(request: Request) -> Response:
    name = request.path_params["name"]
    return static_file(name, STATIC[name]) if name in STATIC else not_found(request, KeyError(name))


def _coloured(bag: Bag, explanation: Explanation) -> Iterator[str]:
    """Tiles for QuPath in the colours of their contributions."""
    return geojson(bag, explanation, colours_of("contribution", explanation.contributions.double().cpu().numpy()))


def _download(
    shelf: Shelf, request: Request, lines: Callable[[Bag, Explanation], Iterator[str]], media_type: str
) -> Response:
    """All instances with their names and scores as a file to keep."""
    opened, explanation = _opened(shelf, request), shelf.explanation(_index(request), _voice(request), _edits(request))
    if media_type != "text/csv" and len(opened.bag.metadata.get("slides", ())) > 1:
        raise DasmilError("this bag joins several slides, whose pixels have no plane in common: take the CSV")
    body = "".join(lines(opened.bag, explanation))
    return _to_keep(opened.bag.bag_id, request.url.path.rsplit("/", 1)[1], body.encode(), media_type)


def _figure(shelf: Shelf, request: Request) -> Response:
    """A figure for a paper to keep."""
    kind, score = request.path_params["kind"], request.query_params.get("score", "contribution")
    if kind not in figure.MEDIA:
        return not_found(request, KeyError(kind))
    body = figure.figure_file(shelf, _index(request), _voice(request), _edits(request), score, kind)
    return _to_keep(shelf.entry(_index(request)).bag_id, f"{score}.{kind}", body, figure.MEDIA[kind])


def _to_keep(bag_id: str, ending: str, body: bytes, media_type: str) -> Response:
    """An answer that the browser saves as a file named after the bag."""
    stem = re.sub(r"[^\w.-]+", "_", bag_id, flags=re.ASCII)
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="{stem}-{ending}"'}
    return Response(body, media_type=media_type, headers=headers)


def _jpeg(pixels: np.ndarray) -> Response:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return Response(
        buffer.getvalue(), media_type="image/jpeg", headers=HEADERS | {"Cache-Control": "private, max-age=300"}
    )


def _tile(opened: OpenBag, request: Request) -> Response:
    picture = opened.picture
    level, x, y = (request.path_params[k] for k in ("level", "x", "y"))
    if picture is None:
        return not_found(request, KeyError("picture"))
    coarsest, finest = levels(picture)
    if not coarsest <= level <= finest:
        return not_found(request, KeyError("level"))
    step = 2 ** (finest - level)
    left, upper = x * TILE * step, y * TILE * step
    if left >= picture.width or upper >= picture.height:
        return not_found(request, KeyError("tile"))
    columns, rows = (
        min(TILE, math.ceil((side - corner) / step))
        for side, corner in ((picture.width, left), (picture.height, upper))
    )
    return _jpeg(picture.region(left, upper, step, TILE)[:rows, :columns])


def _instance_picture(opened: OpenBag, request: Request) -> Response:
    instance = request.path_params["instance"]
    if opened.picture is None or not 0 <= instance < len(opened.bag):
        return not_found(request, KeyError("instance"))
    side = opened.layout.side * (4 if opened.is_round else 1)
    x, y = opened.bag.coords[instance, :2].tolist()
    return _jpeg(opened.picture.ground.tile(x - side / 2, y - side / 2, side, 124))
