"""All QC pictures of a cohort on one page, what failed first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, select_autoescape

from dasmil.files import replacing
from dasmil.wsi.slide_work import SlideResult

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Extracted slides</title>
<style>
:root { color-scheme: light dark;
  --ink: #1a1a1a; --soft: #5f6368; --line: #d8d8d8; --accent: #1f4e79; --warn: #a85508; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --soft: #a0a4a8; --line: #3a3a3a; --accent: #7fb3e6; --warn: #f0a860; }
}
body { font: 15px/1.45 system-ui, sans-serif; color: var(--ink); margin: 24px; font-variant-numeric: tabular-nums; }
h1 { font-size: 22px; font-weight: 600; margin: 0 0 4px; }
h2 { font-size: 16px; font-weight: 600; margin: 28px 0 8px; padding-top: 10px; border-top: 1px solid var(--line); }
p { margin: 0 0 8px; max-width: 72ch; color: var(--soft); }
ul { list-style: none; margin: 0; padding: 0; display: grid; gap: 20px 16px;
     grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)); }
li { font-size: 13px; min-width: 0; }
img { box-sizing: border-box; width: 100%; height: 240px; object-fit: contain; background: #fff;
      border: 1px solid var(--line); }
.none { height: 72px; display: grid; place-items: center; color: var(--soft); border: 1px solid var(--line);
        background: repeating-linear-gradient(45deg, transparent 0 8px, var(--line) 8px 9px); }
a { color: var(--accent); }
.name { font-weight: 600; overflow-wrap: anywhere; margin-top: 4px; }
.soft { color: var(--soft); }
.why { color: var(--warn); overflow-wrap: anywhere; }
</style>
<h1>{{ kept | length }} slide{{ "" if kept | length == 1 else "s" }}, {{ "{:,}".format(tiles) }} tiles
{%- if failed %}, {{ failed | length }} failed{% endif %}</h1>
<p>Blue tiles became features; orange ones were dropped (plain: blank, lined: out of focus); the black line surrounds
what was taken for tissue. A click opens a picture.</p>
{% macro card(r, picture) %}
<li>
{% if picture %}<a href="{{ picture }}"><img src="{{ picture }}" alt="Tiles of {{ r.slide }}" loading="lazy"></a>
{% else %}<div class="none">no picture</div>{% endif %}
<div class="name">{{ r.slide }}</div>
{% if r.mpp %}<div class="soft">{{ "{:,}".format(r.tiles) }} of {{ "{:,}".format(r.grid_tiles) }} tiles kept,
{{ "{:,}".format(r.blank) }} blank, {{ "{:,}".format(r.out_of_focus) }} out of focus;
{{ "%.4g" | format(r.mpp) }} um/px</div>{% endif %}
{% if r.reason %}<div class="why">{{ r.reason }}</div>{% endif %}
{% for warning in r.warnings %}<div class="why">{{ warning }}</div>{% endfor %}
</li>
{% endmacro %}
{% if failed %}<h2>Failed</h2><ul>{% for r, picture in failed %}{{ card(r, picture) }}{% endfor %}</ul>{% endif %}
{% if kept %}<h2>Extracted</h2><ul>{% for r, picture in kept %}{{ card(r, picture) }}{% endfor %}</ul>{% endif %}
{% if busy %}<h2>In work elsewhere</h2>
<ul>{% for r, picture in busy %}{{ card(r, picture) }}{% endfor %}</ul>{% endif %}
</html>
"""


def write_contact_sheet(out_dir: Path, results: Sequence[SlideResult]) -> Path:
    """Write qc/index.html, which needs nothing but the pictures beside it; it appears only when complete."""
    folder = out_dir / "qc"
    folder.mkdir(exist_ok=True)
    groups: dict[str, list[tuple[SlideResult, str | None]]] = {"failed": [], "kept": [], "busy": []}
    for result in sorted(results, key=lambda r: r.slide):
        group = {"failed": "failed", "busy": "busy"}.get(result.status, "kept")
        picture = folder / f"{result.slide}.jpg"
        groups[group].append((result, quote(picture.name) if result.qc and picture.is_file() else None))
    template = Environment(autoescape=select_autoescape(default=True), trim_blocks=True).from_string(_PAGE)
    path = folder / "index.html"
    with replacing(path) as temporary:
        temporary.write_text(template.render(tiles=sum(r.tiles for r, _ in groups["kept"]), **groups), encoding="utf-8")
    return path
