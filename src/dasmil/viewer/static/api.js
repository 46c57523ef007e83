// Questions to the server; an answer that is an error becomes one, in the server's words.

import { state } from "./state.js";
import { writeEdits } from "./whatif.js";

export async function fetchJson(path) {
  const response = await fetch(path);
  const body = await response.json().catch(() => ({ error: `The server answered ${response.status}.` }));
  if (!response.ok) throw new Error(body.error ?? `The server answered ${response.status}.`);
  return body;
}

export async function fetchFloats(path) {
  const response = await fetch(path);
  if (!response.ok) throw new Error((await response.json()).error);
  return new Float32Array(await response.arrayBuffer());
}

/** The address of something about a bag with its edits, asked of one of the models (null: the one that explains it first). */
export function about(index, what = "", voice = null) {
  const asked = new URLSearchParams();
  if (voice !== null) asked.set("voice", voice);
  if (state.edits.length) asked.set("edits", writeEdits(state.edits));
  return `api/bag/${index}${what ? `/${what}` : ""}${asked.size ? `?${asked}` : ""}`;
}
