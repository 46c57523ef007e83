// A second picture of the same bag beside the first, coloured by what another model says; both move together.

import { about, fetchFloats, fetchJson } from "./api.js";
import { levels, makeScale } from "./colour.js";
import { verdictText } from "./format.js";
import { Overlay } from "./overlay.js";

const get = (id) => document.getElementById(id);

export class SecondView {
  /** main: the first viewer; redraw: called when the second has moved; pick: with the number of an instance that was pressed. */
  constructor(main, margins, redraw, pick) {
    Object.assign(this, { main, margins, redraw, pick, viewer: null, overlay: null, account: null, following: false });
  }

  get open() { return this.account !== null; }

  project() {
    const item = this.viewer?.world.getItemAt(0);
    if (!item) return { x0: 0, y0: 0, scale: 1 };
    const origin = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(0, 0));
    const corner = item.imageToViewerElementCoordinates(new OpenSeadragon.Point(item.source.dimensions.x, 0));
    return { x0: origin.x, y0: origin.y, scale: (corner.x - origin.x) / item.source.dimensions.x };
  }

  picked(position) {
    const { x0, y0, scale } = this.project();
    this.pick(this.overlay.hit((position.x - x0) / scale, (position.y - y0) / scale));
  }

  close() {
    this.account = null;
    this.viewer?.close();
    get("stage").classList.remove("two");
    get("second").hidden = true;
  }

  /** Shows the bag by another model; places: as the first overlay has them. */
  async show(bag, voice, tileSource, places) {
    const account = await fetchJson(about(bag.index, "account", voice));
    get("stage").classList.add("two");
    get("second").hidden = false;
    if (!this.viewer) {
      this.viewer = OpenSeadragon({ element: get("second-picture"), drawer: "canvas", showNavigationControl: false, showNavigator: false, animationTime: 0, maxZoomPixelRatio: 8,
        visibilityRatio: 0.3, viewportMargins: this.margins(), gestureSettingsMouse: { clickToZoom: false } });
      this.overlay = new Overlay(get("second-overlay"), () => this.project());
      this.follow(this.main, this.viewer);
      this.follow(this.viewer, this.main);
      this.viewer.addHandler("update-viewport", () => this.redraw());
      this.viewer.addHandler("canvas-click", (event) => event.quick && this.picked(event.position));
    }
    await new Promise((resolve) => {
      const done = () => { this.viewer.removeHandler("open", done); this.viewer.removeHandler("open-failed", done); resolve(); };
      this.viewer.addHandler("open", done);
      this.viewer.addHandler("open-failed", done);
      this.viewer.open(tileSource);
    });
    this.overlay.setBag(places);
    this.account = { ...account, voice };
    this.align(this.main, this.viewer);
  }

  follow(from, to) {
    from.addHandler("viewport-change", () => {
      if (this.following || !this.account || !from.world.getItemCount() || !to.world.getItemCount()) return;
      this.align(from, to);
    });
  }

  align(from, to) {
    this.following = true;
    to.viewport.zoomTo(from.viewport.getZoom(true), null, true);
    to.viewport.panTo(from.viewport.getCenter(true), true);
    this.following = false;
  }

  /** Colours by the same score on a scale that both models share; returns its ends, or null where the other model has no such score. */
  async colour(bag, info, colours, cut, overPicture, range) {
    const other = this.account?.scores.find((s) => s.name === info.name);
    if (!other) return null;
    const theirs = await fetchFloats(about(bag.index, `score/${encodeURIComponent(info.name)}`, this.account.voice));
    const high = Math.max(info.high, other.high);
    const shared = { ...info, high, low: info.signed ? -high : 0, linear: Math.max(info.linear, other.linear) };
    const scale = makeScale(theirs, shared, colours, overPicture, range);
    this.overlay.setColours(levels(theirs, scale, cut), scale.palette);
    this.values = theirs;
    return shared;
  }

  caption(title) {
    return `${this.account.origin || title}: ${verdictText(this.account)}`;
  }
}
