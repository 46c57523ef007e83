// The view as a picture file: what is on the screen, with scale bar and colour bar.

import { scaleNote } from "./colour.js";
import { element } from "./format.js";
import { get, state, theme } from "./state.js";

/** Scale bar, colour bar and what is shown, along the lower edge of a saved picture. */
function drawCaption(context, ratio, out) {
  const width = out.width / ratio, base = out.height / ratio - 44;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = theme.ground;
  context.fillRect(0, base - 20, width, 64);
  context.fillStyle = theme.ink;
  context.font = "13px system-ui, sans-serif";
  context.fillRect(16, base + 12, get("scalebar").firstElementChild.clientWidth, 4);
  context.fillText(get("scalebar").lastElementChild.textContent, 16, base + 34);
  const note = state.score.info.group ? "" : scaleNote(state.score.scale);
  context.fillText([state.entry.id, state.score.info.title, note].filter(Boolean).join("   "), 200, base + 26, Math.max(80, width - 390));
  context.drawImage(get("bar"), width - 176, base - 14, 160, 36);
  const labels = [...get("bar-labels").children].map((label) => label.textContent);
  ["left", "center", "right"].forEach((align, k) => { context.textAlign = align; context.fillText(labels[k], width - 176 + 80 * k, base + 34); });
}

export function exportView(viewer, second) {
  if (!state.score) return;
  const picture = viewer.drawer.canvas;
  const out = document.createElement("canvas");
  out.width = get("overlay").width;
  out.height = get("overlay").height;
  const context = out.getContext("2d");
  context.fillStyle = theme.canvas;
  context.fillRect(0, 0, out.width, out.height);
  context.drawImage(picture, 0, 0, out.width, out.height);
  context.drawImage(get("overlay"), 0, 0);
  drawCaption(context, out.width / get("overlay").clientWidth, out);
  if (second.open) {
    const wide = document.createElement("canvas"); // both pictures in one file, side by side
    wide.width = 2 * out.width;
    wide.height = out.height;
    const both = wide.getContext("2d");
    both.drawImage(out, 0, 0);
    both.fillStyle = theme.canvas;
    both.fillRect(out.width, 0, out.width, out.height);
    both.drawImage(second.viewer.drawer.canvas, out.width, 0, out.width, out.height);
    both.drawImage(get("second-overlay"), out.width, 0, out.width, out.height);
    both.font = `${13 * (out.width / get("overlay").clientWidth)}px system-ui, sans-serif`;
    both.fillStyle = theme.ink;
    [get("first-caption"), get("second-caption")].forEach((caption, k) => both.fillText(caption.textContent, k * out.width + 16, 40, out.width - 32));
    saveCanvas(wide);
    return;
  }
  saveCanvas(out);
}

function saveCanvas(out) {
  const link = element("a", { href: out.toDataURL("image/png"), download: `${state.entry.id.replace(/[^\w.-]+/g, "_")}.png` });
  link.click();
}
