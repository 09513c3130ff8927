// The type and condition fields that Events and Why share: checked by the server's parser while one types.

import { empty, errorAt, get, h } from "/dom.mjs";

const WAIT_MS = 250;

export async function typesOf(page) {
  return get("/api/types", { client: page.client });
}
export const noTypes = () => empty("This broker knows no event types.",
  h("span", {}, "Declare one with ", h("code", {}, "tidings type create"), ", or name its file under types in broker.toml."));

export function typeField(types, chosen) {
  const select = h("select", { id: "type" }, types.map((each) => h("option", { value: each.name }, each.name)));
  if (types.some((each) => each.name === chosen)) select.value = chosen;
  return select;
}

export function chips(type, insert) {
  return h("div", { class: "chips", "aria-label": "Attributes" }, Object.entries(type.attributes).map(([name, kind]) => {
    const sealed = type.hidden.includes(name);
    return h("button", { type: "button", class: `chip ${sealed ? "sealed" : ""}`, onclick: () => insert(name),
      title: sealed ? "You have no right to read this attribute" : "Insert" }, `${name} `, h("span", { class: "soft" }, sealed ? `${kind}, hidden from you` : kind));
  }));
}

export function insertInto(field, text) {
  const at = field.selectionStart ?? field.value.length;
  const before = field.value.slice(0, at), gap = before && !/[\s(]$/.test(before) ? " " : "";
  field.setRangeText(`${gap}${text} `, at, field.selectionEnd ?? at, "end");
  field.focus();
  field.dispatchEvent(new Event("input"));
}

// Shows what the parser says below a field; `then` gets the answer for a condition that is right.
export function checked(page, field, typeName, then = () => {}) {
  const place = h("div", { "aria-live": "polite" });
  let timer = 0, turn = 0;
  async function check() {
    const text = field.value, mine = ++turn;
    if (!text.trim()) { place.replaceChildren(); field.removeAttribute("aria-invalid"); return; }
    const answer = await get("/api/check", { client: page.client, type: typeName(), where: text }).catch(() => null);
    if (mine !== turn || !page.isShown() || !answer) return;
    field.setAttribute("aria-invalid", String(!answer.ok));
    place.replaceChildren(answer.ok ? boxes(answer) : errorAt(text, answer));
    if (answer.ok) then(answer);
  }
  field.addEventListener("input", () => { clearTimeout(timer); timer = setTimeout(check, WAIT_MS); });
  check();
  return place;
}

function boxes(answer) {
  if (!answer.boxes.length) return h("p", { class: "warn" }, "This condition is never TRUE.");
  return h("div", { class: "chips" }, answer.boxes.slice(0, 6).map((box) => h("span", { class: "chip" },
    [...Object.entries(box.sides).map(([name, side]) => `${name} ∈ ${side}`), ...box.residuals.map((each) => `«${each}»`)].join("  ∧  ") || "everything")),
    answer.boxes_total > 6 ? h("span", { class: "soft" }, `and ${answer.boxes_total - 6} boxes more`) : null);
}

// ── Completion: Ctrl+Space completes the word before the cursor ──

const WORDS = ["AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS NULL", "IS NOT NULL", "TRUE", "FALSE", "TIMESTAMP"];

export function completing(field, names) {
  field.setAttribute("aria-keyshortcuts", "Control+Space");
  field.title = "Ctrl+Space completes a name";
  field.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey && event.code === "Space")) return;
    event.preventDefault();
    const end = field.selectionStart, word = /[\w.]*$/.exec(field.value.slice(0, end))[0];
    const found = [...names(), ...WORDS].filter((each) => each.toLowerCase().startsWith(word.toLowerCase()));
    if (!found.length || !word) return;
    const shared = found.length === 1 ? `${found[0]} ` : found.reduce((a, b) => { let n = 0; while (n < a.length && a[n]?.toLowerCase() === b[n]?.toLowerCase()) n += 1; return a.slice(0, n); });
    if (shared.length <= word.length) return;
    field.setRangeText(shared, end - word.length, end, "end");
    field.dispatchEvent(new Event("input"));
  });
}

// ── Conditions that were kept, in this browser ──

const KEPT_MAX = 20;
const keptOf = (type) => { try { return JSON.parse(localStorage.getItem(`tidings.kept.${type}`) ?? "[]").filter((each) => typeof each === "string"); } catch { return []; } };

export function kept(field, typeName, use) {
  const place = h("div", { class: "chips" });
  const store = (texts) => { try { localStorage.setItem(`tidings.kept.${typeName()}`, JSON.stringify(texts.slice(0, KEPT_MAX))); } catch { /* Private windows keep nothing. */ } draw(); };
  const draw = () => place.replaceChildren(...keptOf(typeName()).flatMap((text) => [
    h("button", { type: "button", class: "chip code", onclick: () => { field.value = text; field.dispatchEvent(new Event("input")); use(); } }, text),
    h("button", { type: "button", class: "chip", "aria-label": `Forget ${text}`, onclick: () => store(keptOf(typeName()).filter((each) => each !== text)) }, "×")]));
  const save = h("button", { type: "button", onclick: () => { const text = field.value.trim(); if (text) store([text, ...keptOf(typeName()).filter((each) => each !== text)]); } }, "Keep");
  draw();
  return { save, place, draw };
}
