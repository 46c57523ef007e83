"""The viewer's server: loopback only, fixed routes, no path of the disk ever comes from a request."""

from __future__ import annotations

import io
import math
from importlib import resources
from typing import Any

import numpy as np
import torch
from PIL import Image
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from dasmil.attribution.contributions import both_ways
from dasmil.attribution.ground import Layout, layout_of
from dasmil.errors import DasmilError
from dasmil.types import Bag
from dasmil.viewer.shelf import Opened, Picture, Shelf

TILE = 256  # px, of the deep-zoom pyramid
GROUND = 1600  # px, longer side of the plain ground for bags without a picture
STATIC = {
    "style.css": "text/css",
    "app.js": "text/javascript",
    "panel.js": "text/javascript",
    "overlay.js": "text/javascript",
    "colour.js": "text/javascript",
    "format.js": "text/javascript",
    "openseadragon.js": "text/javascript",
}
TITLES = {  # in the order of the menu
    "contribution": ("Contribution", "half of each pair's part of the logit to each of its ends"),
    "pairs": ("Share in the deciding pairs", "the same without sign: for or against"),
    "support": ("Support for the class", "the same of pairs that speak for the class only"),
    "distance": ("Contribution of distance", "the part of the contribution that came from distance"),
    "taken": ("Taken by deciding rows", "the part of the logit all of which is put on the instance looked at"),
    "attention": ("Attention received", "from all instances, mean"),
    "winner-attention": ("Attention of deciding rows", "received from the rows that decided, mean"),
}
SHOWN_PAIRS = 8
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class OwnPageOnly:
    """Refuses requests that another host name or another site's page makes (DNS rebinding, cross-site reads)."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}".encode() for name in ("127.0.0.1", "localhost", "[::1]")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = dict(scope["headers"])
        origin = headers.get(b"origin")
        allowed = headers.get(b"host") in self.hosts
        allowed &= headers.get(b"sec-fetch-site", b"none") in (b"none", b"same-origin")
        allowed &= origin is None or origin.removeprefix(b"http://") in self.hosts
        if not allowed:
            reason = "This viewer answers only its own page, opened at the address it printed."
            await JSONResponse({"error": reason}, status_code=403, headers=HEADERS)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def create_app(shelf: Shelf, port: int) -> Starlette:
    """The application for one shelf, to be served at this port of the loopback interface."""
    routes = [
        Route("/", lambda _request: _static("index.html", "text/html")),
        Route("/static/{name}", _serve_static),
        Route("/api/bags", lambda _request: _json(_list(shelf))),
        Route("/api/bag/{index:int}", lambda r: _json(_describe(shelf, _index(r)))),
        Route("/api/bag/{index:int}/account", lambda r: _json(_account(shelf, _index(r)))),
        Route("/api/bag/{index:int}/coords", lambda r: _floats(_centres(shelf.open(_index(r))))),
        Route("/api/bag/{index:int}/score/{name}", lambda r: _floats(_score(shelf.open(_index(r)), r))),
        Route("/api/bag/{index:int}/partners/{instance:int}", lambda r: _json(_partners(shelf, r))),
        Route("/api/bag/{index:int}/instance/{instance:int}", lambda r: _instance_picture(shelf.open(_index(r)), r)),
        Route("/api/bag/{index:int}/picture/{level:int}/{x:int}/{y:int}", lambda r: _tile(shelf.open(_index(r)), r)),
    ]
    handlers: dict[Any, Any] = {DasmilError: _refused, OSError: _refused, 404: _not_found, 405: _not_found}
    return Starlette(routes=routes, middleware=[Middleware(OwnPageOnly, port=port)], exception_handlers=handlers)


def _refused(_request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=422, headers=HEADERS)


def _not_found(_request: Request, _error: Exception) -> Response:
    return JSONResponse({"error": "There is nothing at this address."}, status_code=404, headers=HEADERS)


def _index(request: Request) -> int:
    return request.path_params["index"]


def _json(content: dict) -> Response:
    return JSONResponse(content, headers=HEADERS)


def _floats(values: torch.Tensor) -> Response:
    body = values.detach().to(torch.float32).contiguous().numpy().astype("<f4").tobytes()
    return Response(body, media_type="application/octet-stream", headers=HEADERS)


def _static(name: str, media_type: str) -> Response:
    body = resources.files("dasmil.viewer").joinpath("static", name).read_bytes()
    return Response(body, media_type=media_type, headers=HEADERS)


def _serve_static(request: Request) -> Response:
    name = request.path_params["name"]
    return _static(name, STATIC[name]) if name in STATIC else _not_found(request, KeyError(name))


def _list(shelf: Shelf) -> dict:
    bags = [
        {
            "index": index,
            "id": entry.bag_id,
            "label": entry.label,
            "label_name": shelf.class_name(entry.label),
            "prediction": entry.prediction,
            "prediction_name": shelf.class_name(entry.prediction),
            "probability": entry.probability,
            "split": entry.split,
            "patient": entry.patient,
        }
        for index, entry in enumerate(shelf.entries)
    ]
    return {"title": shelf.title, "subtitle": shelf.subtitle, "classes": shelf.classes, "bags": bags}


def instance_size(bag: Bag) -> tuple[float, bool]:
    """Side of an instance in the bag's unit, and whether it is a point (drawn round) rather than a tile."""
    return layout_of(bag).side, not (bag.metadata.get("tile_um") or bag.features.ndim == 4)


def _layout(opened: Opened) -> Layout:
    return layout_of(opened.bag, None if opened.picture is None else opened.picture.ground)


def _centres(opened: Opened) -> torch.Tensor:
    return torch.from_numpy(_layout(opened).centres)


def _frame(opened: Opened) -> dict:
    """The rectangle of the unit's plane that the picture covers, and pixels per unit."""
    picture = opened.picture
    x0, y0, width, height = _layout(opened).field
    k = GROUND / max(width, height) if picture is None else picture.px_per_unit
    return {"x0": x0, "y0": y0, "width": width, "height": height, "px_per_unit": k}


def _describe(shelf: Shelf, index: int) -> dict:
    """What is known without computing: where the instances lie, and the learned distance."""
    opened = shelf.open(index)
    bag, picture = opened.bag, opened.picture
    size, is_round = instance_size(bag)
    extent = (bag.coords.amax(0) - bag.coords.amin(0)).norm().item()
    curves = shelf.curves(extent)
    if curves:  # the part of the axis where phi changes, not the whole slide
        reach = max((c["midpoint"] + 3 * c["width"] for c in curves if math.isfinite(c["width"])), default=extent)
        curves = shelf.curves(min(extent, max(2 * max(c["midpoint"] for c in curves), reach, 4 * size)) or 1.0)
    return {
        "n": len(bag),
        "unit": bag.unit,
        "instance_size": size,
        "round": is_round,
        "frame": _frame(opened),
        "picture": picture
        and {
            "width": picture.width,
            "height": picture.height,
            "tile_size": TILE,
            **dict(zip(("min_level", "max_level"), _levels(picture))),
        },
        "curves": curves,
        "warnings": list(opened.warnings),
    }


def _account(shelf: Shelf, index: int) -> dict:
    """The account of the logit and the names of its scores; waits until it is computed."""
    opened = shelf.open(index)
    explanation = opened.explanation
    order = list(TITLES)
    names = sorted(explanation.scores, key=lambda name: order.index(name) if name in order else len(order))
    return {
        "logit": explanation.logit,
        "probability": opened.probability,
        "target_name": shelf.class_name(explanation.target),
        "method": explanation.method,
        "distance_share": explanation.distance_share,
        "scores": [
            {"name": n, "title": title, "hint": hint, "signed": bool((explanation.scores[n] < 0).any())}
            for n in names
            for title, hint in [TITLES.get(n, (n, ""))]
        ],
        "pairs": [
            {"i": p.i, "j": p.j, "contribution": p.contribution, "distance": p.distance, "phi": p.phi}
            for p in both_ways(explanation.pairs)[:SHOWN_PAIRS]
        ],
    }


def _score(opened: Opened, request: Request) -> torch.Tensor:
    name = request.path_params["name"]
    if name not in opened.explanation.scores:
        raise DasmilError(f"there is no score {name!r} for this bag; it has {', '.join(opened.explanation.scores)}")
    return opened.explanation.scores[name]


def _partners(shelf: Shelf, request: Request) -> dict:
    index, instance = _index(request), request.path_params["instance"]
    pairs = shelf.partners(index, instance)
    opened = shelf.open(index)
    scores = {} if opened.known is None else opened.known.scores
    x, y = opened.bag.coords[instance, :2].tolist()
    return {
        "index": instance,
        "x": x,
        "y": y,
        "scores": {TITLES.get(name, (name,))[0]: float(values[instance]) for name, values in scores.items()},
        "partners": [
            {
                "index": p.j,
                "head": p.head,
                "weight": p.weight,
                "distance": p.distance,
                "phi": p.phi,
                "contribution": p.contribution,
            }
            for p in pairs
        ],
    }


def _jpeg(pixels: np.ndarray) -> Response:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=85)
    return Response(
        buffer.getvalue(), media_type="image/jpeg", headers=HEADERS | {"Cache-Control": "private, max-age=300"}
    )


def _levels(picture: Picture) -> tuple[int, int]:
    """The coarsest level of the deep-zoom pyramid, which is one tile, and the finest, which is level 0 of the slide."""
    finest = math.ceil(math.log2(max(picture.width, picture.height, 2)))
    return min(finest, int(math.log2(TILE))), finest


def _tile(opened: Opened, request: Request) -> Response:
    picture = opened.picture
    level, x, y = (request.path_params[k] for k in ("level", "x", "y"))
    if picture is None:
        return _not_found(request, KeyError("picture"))
    coarsest, finest = _levels(picture)
    if not coarsest <= level <= finest:
        return _not_found(request, KeyError("level"))
    step = 2 ** (finest - level)
    left, upper = x * TILE * step, y * TILE * step
    if left >= picture.width or upper >= picture.height:
        return _not_found(request, KeyError("tile"))
    columns, rows = (
        min(TILE, math.ceil((side - corner) / step))
        for side, corner in ((picture.width, left), (picture.height, upper))
    )
    return _jpeg(picture.region(left, upper, step, TILE)[:rows, :columns])


def _instance_picture(opened: Opened, request: Request) -> Response:
    instance = request.path_params["instance"]
    if opened.picture is None or not 0 <= instance < len(opened.bag):
        return _not_found(request, KeyError("instance"))
    size, is_round = instance_size(opened.bag)
    side = size * (4 if is_round else 1)
    x, y = opened.bag.coords[instance, :2].tolist()
    return _jpeg(opened.picture.ground.tile(x - side / 2, y - side / 2, side, 124))
