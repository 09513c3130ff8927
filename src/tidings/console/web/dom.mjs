// Elements, requests and times. Content is always put in as text nodes and attributes; nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.flat(Infinity).filter((each) => each !== null && each !== undefined && each !== false)
    .map((each) => (each instanceof Node ? each : String(each))));
  return element;
}

export const h = (tag, properties, ...children) => fill(document.createElement(tag), properties, children);
export const s = (tag, properties, ...children) => fill(document.createElementNS(SVG, tag), properties, children);

// ── Requests ──

export class Refused extends Error {
  constructor(status, why) { super(why); this.status = status; }
}

let csrf = "";
export function useCsrf(token) { csrf = token; }

async function answer(response) {
  const content = await response.json().catch(() => ({ why: "the console answered in an unknown form" }));
  if (!response.ok) throw new Refused(response.status, content.why ?? response.statusText);
  return content;
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new Refused(0, "the console does not answer; is `tidings console` still running?");
  }
  return answer(response);
}

export const get = (path, query = {}) => request(`${path}?${new URLSearchParams(query)}`, { credentials: "same-origin" });
export const post = (path, content) => request(path, {
  method: "POST", credentials: "same-origin", body: JSON.stringify(content),
  headers: { "Content-Type": "application/json", "X-Tidings-CSRF": csrf },
});

// ── Pieces that all screens use ──

// What stands between backticks is code.
export const prose = (text) => String(text).split("`").map((part, at) => (at % 2 ? h("code", {}, part) : part));
export const empty = (title, advice) => h("div", { class: "empty" }, h("b", {}, title), typeof advice === "string" ? h("span", {}, prose(advice)) : advice);
export const problem = (why) => h("div", { class: "panel problem", role: "alert" },
  h("b", { class: "bad" }, "This did not work. "), h("pre", {}, prose(why)));
export const badge = (text, kind) => h("span", { class: `badge ${kind}` }, text);
export const tile = (value, what) => h("div", { class: "tile" }, h("b", {}, value), h("span", {}, what));
export const table = (columns, rows, caption) => h("div", { class: "scroll", tabindex: "0", role: "region",
  "aria-label": caption ?? "Table" },
  h("table", { role: "table", class: columns.length > 2 ? "cards" : undefined }, head(columns), h("tbody", { role: "rowgroup" }, rows.flat(Infinity).map((row) => labelled(columns, row)))));

// On a narrow screen a row is a card, and each of its cells names its column; roles tell that it is a table still.
export const head = (columns) => h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, columns.map((each) => h("th", { scope: "col", role: "columnheader", class: each.class }, each.title ?? each))));
export function labelled(columns, row) {
  row.setAttribute("role", "row");
  let at = 0;
  for (const cell of row.cells) {
    cell.setAttribute("role", cell.tagName === "TH" ? "rowheader" : "cell");
    cell.dataset.label = cell.colSpan > 1 ? "" : columns[at]?.title ?? columns[at] ?? "";
    at += cell.colSpan;
  }
  return row;
}

// Replaces what is in a place. Focus and scrolled tables stay where they were; while text in it is selected, it waits.
export function renew(place, ...children) {
  const selection = getSelection();
  if (!selection.isCollapsed && place.contains(selection.anchorNode)) return;
  const focused = place.contains(document.activeElement) && document.activeElement !== place ? document.activeElement : null;
  const scrolled = [...place.querySelectorAll(".scroll")].filter((each) => each.scrollLeft).map((each) => [each.ariaLabel, each.scrollLeft]);
  place.replaceChildren(...children);
  for (const [label, left] of scrolled) for (const each of place.querySelectorAll(".scroll")) if (each.ariaLabel === label) each.scrollLeft = left;
  if (focused) [...place.querySelectorAll(focused.tagName)].find((each) => nameOf(each) === nameOf(focused))?.focus({ preventScroll: true });
}
const nameOf = (element) => element.getAttribute("href") ?? element.ariaLabel ?? element.textContent;

// A window above the page; Escape closes it, and the focus returns to where it was.
export function opened(title, ...content) {
  const before = document.activeElement;
  const dialog = h("dialog", { "aria-label": title }, h("div", { class: "row" }, h("h2", { class: "grow" }, title), h("button", { type: "button", onclick: () => dialog.close() }, "Close")), content);
  dialog.addEventListener("close", () => { dialog.remove(); before?.focus?.({ preventScroll: true }); });
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}
addEventListener("hashchange", () => document.querySelector("dialog[open]")?.close());

// Copies a text, and says so on the button that was pressed.
export async function copied(button, text) {
  const title = button.textContent;
  try { await navigator.clipboard.writeText(text); button.textContent = "Copied"; } catch { button.textContent = "The browser does not allow it"; }
  setTimeout(() => { button.textContent = title; }, 2000);
}

export function errorAt(text, check) {
  const line = text.replaceAll(/\s/g, " ");
  return h("div", { class: "spot", role: "alert" }, `${check.what} at character ${check.column}`,
    h("pre", { class: "code" }, `${line}\n${" ".repeat(Math.max(0, check.column - 1))}^`), check.hint ? check.hint : null);
}

// ── Times and numbers, as the viewer's machine shows them ──

const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1, hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const moment = new Intl.DateTimeFormat(undefined, { year: "numeric", month: "short", day: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hourCycle: "h23", timeZoneName: "short" });
const number = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });

export const timeOf = (iso) => { const at = new Date(iso); return isNaN(at) ? String(iso) : clock.format(at); };
export const momentOf = (iso) => { const at = new Date(iso); return isNaN(at) ? String(iso) : moment.format(at); };
export const zone = () => moment.formatToParts(new Date()).find((each) => each.type === "timeZoneName")?.value ?? "";
export const dayOf = (ms) => (ms > 8.6e15 ? "no end" : day.format(new Date(ms)));
export const count = (value) => number.format(value);
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  while (value >= 1000 && at < units.length - 1) { value /= 1000; at += 1; }
  return `${number.format(value)} ${units[at]}`;
}
export function duration(seconds) {
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) if (seconds >= size) return `${number.format(seconds / size)} ${unit}`;
  return `${number.format(seconds)} s`;
}
export function left(ms) { return duration(Math.max(0, (ms - Date.now()) / 1000)); }
// How the values of a type travel.
export const sealing = (mode) => ({ attribute: "each attribute by itself", event: "the event as one", plain: "nothing", open: "nothing" })[mode] ?? mode;
export const showValue = (value) => (typeof value === "string" ? value : JSON.stringify(value));
