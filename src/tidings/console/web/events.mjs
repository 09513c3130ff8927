// Events: a live tail by type and condition. The server limits how many arrive here; the page keeps the newest.

import { checked, chips, completing, insertInto, kept, noTypes, typeField, typesOf } from "/condition.mjs";
import { count, h, post, problem, showValue, timeOf } from "/dom.mjs";

const ROWS_MAX = 200;

export async function show(page) {
  page.root.append(h("h1", {}, "Events"), h("p", { class: "lead" },
    "Events as they arrive, for which the condition is TRUE. You see the attributes that your rights allow."));
  const types = await typesOf(page);
  if (!page.isShown()) return;
  if (!types.length) return page.root.append(h("div", { class: "panel" }, noTypes()));
  const type = typeField(types, page.query.type);
  const where = h("input", { id: "where", class: "code", value: page.query.where ?? "", placeholder: "TRUE, or for example: speed > 40", spellcheck: "false", autocomplete: "off" });
  const button = h("button", { class: "main", type: "submit" }, "Show events");
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const copy = h("button", { type: "button" }, "Copy link");
  const attributes = h("div", {}), stream = h("div", {});
  const known = () => types.find((each) => each.name === type.value);
  const drawChips = () => attributes.replaceChildren(chips(known(), (name) => insertInto(where, name)));
  completing(where, () => Object.keys(known().attributes));
  const shelf = kept(where, () => type.value, () => start());
  const form = h("form", { class: "panel" },
    h("div", { class: "row" }, h("div", {}, h("label", { for: "type" }, "Type"), type),
      h("div", { class: "grow" }, h("label", { for: "where" }, "Condition, as after WHERE in SQL"), where), button, pause, shelf.save, copy),
    checked(page, where, () => type.value), attributes, shelf.place);
  page.root.append(form, page.me.may_publish ? publishForm(page, known) : "", stream);
  drawChips();

  let tail = null;
  const start = () => {
    tail?.close();
    page.remember({ type: type.value, where: where.value });
    tail = new Tail(page, stream, known(), where.value, () => pause.getAttribute("aria-pressed") === "true");
  };
  type.addEventListener("change", () => { drawChips(); shelf.draw(); where.dispatchEvent(new Event("input")); start(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Continue" : "Pause";
    tail?.draw();
  });
  copy.addEventListener("click", async () => { await navigator.clipboard.writeText(location.href); copy.textContent = "Copied"; });
  page.onLeave(() => tail?.close());
  start();
}

class Tail {
  constructor(page, place, type, where, isPaused) {
    Object.assign(this, { page, place, type, isPaused, rows: [], fresh: 0, total: 0, skipped: 0, missed: 0, marks: [], over: "" });
    this.status = h("p", { class: "note", role: "status" }, "Waiting for the first event…");
    this.body = h("tbody", {});
    const names = Object.keys(type.attributes);
    this.names = names;
    place.replaceChildren(h("div", { class: "panel" }, this.status, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Time"), names.map((name) => h("th", { scope: "col" }, name)), h("th", { scope: "col" }, "Look at"))), this.body))));
    this.source = new EventSource(`/api/feed?${new URLSearchParams({ client: page.client, type: type.name, where })}`);
    this.source.addEventListener("batch", (event) => this.take(JSON.parse(event.data)));
    this.source.addEventListener("over", (event) => { this.over = JSON.parse(event.data).why; this.close(); this.draw(); });
    this.source.onerror = () => this.refused(where);
  }

  // An EventSource does not show why it was refused; the same request, made once more, does.
  async refused(where) {
    if (this.total || this.source.readyState !== EventSource.CLOSED) return;
    const answer = await fetch(this.source.url, { credentials: "same-origin" }).catch(() => null);
    const why = answer && !answer.ok ? (await answer.json().catch(() => ({}))).why : "the console does not answer";
    answer?.body?.cancel?.().catch(() => {});
    if (this.page.isShown()) this.place.replaceChildren(problem(why ?? "refused"));
  }

  take(batch) {
    const now = performance.now();
    this.total = batch.total; this.missed = batch.missed; this.skipped += batch.skipped;
    this.marks.push([now, batch.total]);
    while (this.marks.length > 2 && now - this.marks[0][0] > 5000) this.marks.shift();
    this.rows.unshift(...batch.events.reverse());
    this.rows.length = Math.min(this.rows.length, ROWS_MAX);
    this.fresh += batch.events.length;
    if (!this.waiting) { this.waiting = true; requestAnimationFrame(() => { this.waiting = false; this.draw(); }); }
  }

  draw() {
    if (!this.page.isShown()) return;
    const [[then, before]] = this.marks.length ? this.marks : [[0, 0]];
    const seconds = (performance.now() - then) / 1000, rate = this.marks.length > 1 ? (this.total - before) / Math.max(1, seconds) : 0;
    const paused = this.isPaused();
    this.status.textContent = this.over ? `Ended: ${this.over}`
      : !this.total ? "No event has matched yet. They appear here as they are published."
      : `${count(rate)} events a second · ${count(this.total)} since the feed began · ${count(this.skipped)} not shown, to keep up`
        + (this.missed ? ` · ${count(this.missed)} missed` : "") + (paused ? " · paused" : "");
    if (paused) return;
    const added = this.rows.slice(0, Math.min(this.fresh, ROWS_MAX)).map((event) => this.row(event));
    this.fresh = 0;
    this.body.prepend(...added);
    while (this.body.rows.length > ROWS_MAX) this.body.deleteRow(-1);
  }

  row(event) {
    const cells = this.names.map((name) => name in event.values ? cell(event.values[name], this.type.attributes[name])
      : h("td", { class: "sealed-cell" }, this.type.hidden.includes(name) ? "hidden" : "–"));
    const explain = () => { sessionStorage.setItem("tidings.event", JSON.stringify({ type: this.type.name, values: event.values })); location.hash = this.page.link("why", { type: this.type.name }); };
    return h("tr", { class: "fresh" }, h("td", { class: "short", title: event.at }, timeOf(event.at)), cells,
      h("td", { class: "short" }, h("a", { href: this.page.link("trace", { event: event.id }) }, "Trace"), " · ",
        h("button", { type: "button", class: "chip", onclick: explain }, "Why")));
  }

  close() { this.source.close(); }
}

const cell = (value, kind) => (kind === "timestamp" ? h("td", { class: "short", title: value }, timeOf(value)) : h("td", {}, showValue(value)));

function publishForm(page, known) {
  const fields = h("div", { class: "row" }), said = h("p", { role: "status", class: "note" });
  const inputs = new Map();
  const draw = () => {
    inputs.clear();
    fields.replaceChildren(...Object.entries(known().attributes).map(([name, kind]) => {
      const input = h("input", { id: `value-${name}`, autocomplete: "off" });
      inputs.set(name, [input, kind]);
      return h("div", {}, h("label", { for: `value-${name}` }, `${name} (${kind})`), input);
    }));
  };
  const form = h("form", {}, fields, h("p", {}, h("button", { class: "main" }, "Publish")), said);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const values = {};
    for (const [name, [input, kind]] of inputs) if (input.value !== "") values[name] = typedValue(input.value, kind);
    try {
      const { id } = await post("/api/publish", { client: page.client, type: known().name, values });
      said.replaceChildren("Published: ", h("a", { href: page.link("trace", { event: id }) }, id));
    } catch (error) { said.replaceChildren(h("span", { class: "bad" }, error.message)); }
  });
  const details = h("details", { class: "panel" }, h("summary", {}, "Publish an event"), form);
  details.addEventListener("toggle", draw);
  return details;
}

function typedValue(text, kind) {
  if (["int", "double"].includes(kind) && text.trim() !== "" && Number.isFinite(Number(text))) return Number(text);
  if (kind === "boolean" && ["true", "false"].includes(text)) return text === "true";
  return text;
}
