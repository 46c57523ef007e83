// What people add to a slide: outlines from a GeoJSON file (as QuPath writes it), and a ruler.

const CASING = "rgba(255, 255, 255, .85)", PLAIN = "#000000";

/** Shapes of a GeoJSON file in level-0 pixels: [{name, colour, lines: [[x, y], ...][], points: [x, y][], closed (an area), feature (as read)}]. */
export function readShapes(text) {
  let content;
  try { content = JSON.parse(text); } catch { throw new Error("This file is not GeoJSON: it cannot be read as JSON."); }
  const features = content.type === "FeatureCollection" ? content.features : Array.isArray(content) ? content : content.type === "Feature" ? [content] : content.coordinates ? [{ geometry: content }] : null;
  if (!features) throw new Error("This file is not GeoJSON: expected a FeatureCollection, as QuPath exports it.");
  const shapes = features.filter((f) => f?.geometry).map((feature) => {
    const { properties = {} } = feature;
    const kind = properties?.classification ?? {};
    const name = String(kind.name ?? properties?.name ?? ""), rgb = rgbOf(kind.color ?? properties?.color);
    return { name, read: name, rgb, colour: `rgb(${rgb})`, ...outline(feature.geometry), closed: /Polygon$/.test(feature.geometry.type), feature };
  });
  if (!shapes.some((s) => s.lines.length || s.points.length)) throw new Error("This GeoJSON file holds no shapes.");
  return shapes;
}

function rgbOf(value) {
  return Array.isArray(value) && value.length >= 3 ? value.slice(0, 3).map((v) => Math.min(255, Math.max(0, Math.round(Number(v)) || 0))) : [0, 0, 0];
}

function outline(geometry) {
  const c = geometry.coordinates;
  const kinds = { Polygon: () => ({ lines: c, points: [] }), MultiPolygon: () => ({ lines: c.flat(), points: [] }), LineString: () => ({ lines: [c], points: [] }),
                  MultiLineString: () => ({ lines: c, points: [] }), Point: () => ({ lines: [], points: [c] }), MultiPoint: () => ({ lines: [], points: c }) };
  if (geometry.type === "GeometryCollection") {
    const parts = geometry.geometries.map(outline);
    return { lines: parts.flatMap((p) => p.lines), points: parts.flatMap((p) => p.points) };
  }
  return (kinds[geometry.type] ?? (() => ({ lines: [], points: [] })))();
}

/** Draws shapes; place: a level-0 pixel on the screen. */
export function drawShapes(context, shapes, place, width, height) {
  context.font = "12px system-ui, sans-serif";
  for (const shape of shapes) {
    const lines = shape.lines.map((line) => line.map(([x, y]) => place(x, y)));
    if (!lines.some((line) => seen(line, width, height)) && !shape.points.length) continue;
    for (const [colour, wide] of [[CASING, 4], [shape.colour, 2]]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      for (const line of lines) {
        context.beginPath();
        line.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
        context.stroke();
      }
      for (const [x, y] of shape.points.map(([px, py]) => place(px, py))) {
        context.beginPath();
        context.arc(x, y, 4, 0, 7);
        context.stroke();
      }
    }
    const first = lines[0]?.[0] ?? place(...(shape.points[0] ?? [0, 0]));
    if (shape.name) write(context, shape.name, first[0] + 4, first[1] - 6);
  }
}

function seen(line, width, height) {
  let left = Infinity, right = -Infinity, top = Infinity, bottom = -Infinity;
  for (const [x, y] of line) { left = Math.min(left, x); right = Math.max(right, x); top = Math.min(top, y); bottom = Math.max(bottom, y); }
  return right >= 0 && left <= width && bottom >= 0 && top <= height && (right - left > 0.5 || bottom - top > 0.5);
}

/** Text that can be read on any ground. */
function write(context, text, x, y) {
  const w = context.measureText(text).width + 6;
  context.fillStyle = CASING;
  context.fillRect(x - 3, y - 12, w, 16);
  context.fillStyle = PLAIN;
  context.fillText(text, x, y);
}

/** The ruler: from the first point to the second, with its length. points: on the screen. */
export function drawRuler(context, points, text) {
  if (!points.length) return;
  for (const [colour, wide] of [[CASING, 5], [PLAIN, 2]]) {
    context.strokeStyle = colour;
    context.lineWidth = wide;
    context.beginPath();
    context.moveTo(...points[0]);
    context.lineTo(...points.at(-1));
    context.stroke();
    for (const [x, y] of points) { context.beginPath(); context.arc(x, y, 4, 0, 7); context.stroke(); }
  }
  context.font = "13px system-ui, sans-serif";
  if (points.length > 1) write(context, text, (points[0][0] + points[1][0]) / 2 + 8, (points[0][1] + points[1][1]) / 2 - 8);
}
