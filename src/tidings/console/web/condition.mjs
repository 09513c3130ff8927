// The type and condition fields that Events and Why share: checked by the server's parser while one types.

import { drawn } from "/boxes.mjs";
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
  return h("div", {}, drawn(answer), h("div", { class: "chips" }, answer.boxes.slice(0, 6).map((box) => h("span", { class: "chip" },
    [...Object.entries(box.sides).map(([name, side]) => `${name} ∈ ${side}`), ...box.residuals.map((each) => `«${each}»`)].join("  ∧  ") || "everything")),
    answer.boxes_total > 6 ? h("span", { class: "soft" }, `and ${answer.boxes_total - 6} boxes more`) : null));
}

// ── Completion: a list of what may come next, as one types; Ctrl+Space opens it, too ──

const AFTER_A_NAME = ["=", "<>", "<", "<=", ">", ">=", "IN (", "LIKE '", "BETWEEN ", "IS NULL", "IS NOT NULL"];
const FUNCTIONS = ["LENGTH(", "LOWER(", "UPPER(", "TRIM(", "LEFT(", "RIGHT(", "SUBSTRING(", "CONCAT(", "ABS(", "ARRAY_CONTAINS(", "CARDINALITY("];
const STARTERS = ["TIMESTAMP '", "NOT ", "("];
const LIST_MAX = 12;

// What may come at the end of a text, and how much of its end it replaces. Inside a quoted text nothing does.
export function suggestions(text, names) {
  const line = text.slice(text.lastIndexOf("\n") + 1);
  if ((line.match(/'/g)?.length ?? 0) % 2) return { from: 0, found: [] };
  const word = /[\w.]*$/.exec(line)[0], before = line.slice(0, line.length - word.length).trimEnd();
  const last = /[\w.]+$|[<>=!]+$|[),']$/.exec(before)?.[0] ?? "";
  const isName = names.includes(last), isValue = !isName && /^[\d.]+$|^[)']$/.test(last);
  const known = isName ? AFTER_A_NAME : isValue ? ["AND ", "OR "] : [...names, ...FUNCTIONS, ...STARTERS, "TRUE", "FALSE"];
  const fit = known.filter((each) => each.toLowerCase().startsWith(word.toLowerCase()) && each.trim().toLowerCase() !== word.toLowerCase());
  return { from: word.length, found: fit.slice(0, LIST_MAX) };
}

let lists = 0;

export function completing(field, names) {
  const id = `completions-${++lists}`, list = h("ul", { id, role: "listbox", class: "completions", "aria-label": "Completions", hidden: true });
  for (const [name, value] of Object.entries({ role: "combobox", "aria-autocomplete": "list", "aria-expanded": "false", "aria-controls": id, "aria-keyshortcuts": "Control+Space" })) field.setAttribute(name, value);
  let options = [], from = 0, chosen = -1;
  const close = () => { list.hidden = true; field.setAttribute("aria-expanded", "false"); field.removeAttribute("aria-activedescendant"); options = []; chosen = -1; };
  const mark = (at) => {
    chosen = (at + options.length) % options.length;
    [...list.children].forEach((each, n) => each.setAttribute("aria-selected", String(n === chosen)));
    field.setAttribute("aria-activedescendant", `${id}-${chosen}`);
    list.children[chosen].scrollIntoView({ block: "nearest" });
  };
  const take = (at) => {
    const end = field.selectionStart, text = options[at], spaced = /[\s('(]$/.test(text) ? text : `${text} `;
    field.setRangeText(spaced, end - from, end, "end");
    close();
    field.focus();
    field.dispatchEvent(new Event("input"));
  };
  const open = (asked) => {
    const end = field.selectionStart, { from: length, found } = suggestions(field.value.slice(0, end), names());
    if (!found.length || (!asked && !length)) return close();
    [options, from] = [found, length];
    list.replaceChildren(...found.map((each, n) => h("li", { id: `${id}-${n}`, role: "option", "aria-selected": "false", onmousedown: (event) => { event.preventDefault(); take(n); } }, each)));
    list.hidden = false;
    field.setAttribute("aria-expanded", "true");
    if (asked) mark(0);
  };
  field.addEventListener("input", (event) => { if (event.isTrusted) open(false); else close(); });
  field.addEventListener("blur", close);
  field.addEventListener("keydown", (event) => {
    if (event.ctrlKey && event.code === "Space") {
      event.preventDefault();
      open(true);
      if (options.length === 1) take(0);
    } else if (options.length && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      mark(event.key === "ArrowDown" ? chosen + 1 : chosen - 1 + (chosen < 0 ? 1 : 0));
    } else if (chosen >= 0 && ["Enter", "Tab"].includes(event.key)) {
      event.preventDefault();
      take(chosen);
    } else if (event.key === "Escape") close();
  });
  const place = h("div", { class: "completing" });
  queueMicrotask(() => { if (field.parentNode) { field.replaceWith(place); place.append(field, list); } });
}

// ── Conditions that were kept, in this browser ──

const KEPT_MAX = 20;
export const keptOf = (type) => { try { return JSON.parse(localStorage.getItem(`tidings.kept.${type}`) ?? "[]").filter((each) => typeof each === "string"); } catch { return []; } };

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
