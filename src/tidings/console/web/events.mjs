// Events: a live tail by type and condition. The server limits how many arrive here; the page keeps the newest.

import { checked, chips, completing, insertInto, kept, noTypes, typeField, typesOf } from "/condition.mjs";
import { copied, count, h, head, labelled, momentOf, opened, post, problem, showValue, table, timeOf, zone } from "/dom.mjs";

const ROWS_MAX = 200;
// How far back events are shown again, as far as brokers keep them.
const BACK = [[0, "now"], [60, "a minute ago"], [900, "15 minutes ago"], [3600, "an hour ago"], [86_400, "a day ago"], [604_800, "a week ago"]];

export async function show(page) {
  page.root.append(h("h1", {}, "Events"), h("p", { class: "lead" },
    "Events as they arrive, for which the condition is TRUE. You see the attributes that your rights allow."));
  const types = await typesOf(page);
  if (!page.isShown()) return;
  if (!types.length) return page.root.append(h("div", { class: "panel" }, noTypes()));
  const type = typeField(types, page.query.type);
  const where = h("input", { id: "where", class: "code", value: page.query.where ?? "", placeholder: "TRUE, or for example: speed > 40", spellcheck: "false", autocomplete: "off" });
  const button = h("button", { class: "main", type: "submit" }, "Show events");
  const back = h("select", { id: "back" }, BACK.map(([seconds, title]) => h("option", { value: seconds }, title)));
  if (BACK.some(([seconds]) => String(seconds) === page.query.back)) back.value = page.query.back;
  const pause = h("button", { type: "button", "aria-pressed": "false" }, "Pause");
  const copy = h("button", { type: "button" }, "Copy link");
  const attributes = h("div", {}), stream = h("div", {});
  const known = () => types.find((each) => each.name === type.value);
  const drawChips = () => attributes.replaceChildren(chips(known(), (name) => insertInto(where, name)));
  completing(where, () => Object.keys(known().attributes));
  const shelf = kept(where, () => type.value, () => start());
  const form = h("form", { class: "panel" },
    h("div", { class: "row" }, h("div", {}, h("label", { for: "type" }, "Type"), type),
      h("div", { class: "grow" }, h("label", { for: "where" }, "Condition, as after WHERE in SQL"), where),
      page.me.may_act ? h("div", {}, h("label", { for: "back" }, "From"), back) : null, button, pause, shelf.save, copy),
    checked(page, where, () => type.value), attributes, shelf.place);
  const publishing = page.me.may_publish ? new PublishForm(page, known) : null;
  page.root.append(form, publishing?.place ?? "", stream);
  drawChips();

  let tail = null;
  const start = async () => {
    tail?.close();
    const seconds = page.me.may_act ? Number(back.value) : 0;
    page.remember({ type: type.value, where: where.value, ...(page.me.may_act ? { back: back.value } : {}) });
    let replay = "";
    try { if (seconds) ({ replay } = await post("/api/replay", { client: page.client, type: type.value, where: where.value, back_s: seconds })); }
    catch (error) { return stream.replaceChildren(problem(error.message)); }
    if (!page.isShown()) return;
    tail?.close();
    tail = new Tail(page, stream, known(), where.value, () => pause.getAttribute("aria-pressed") === "true", publishing, replay);
  };
  type.addEventListener("change", () => { drawChips(); shelf.draw(); publishing?.draw(); where.dispatchEvent(new Event("input")); start(); });
  form.addEventListener("submit", (event) => { event.preventDefault(); start(); });
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") !== "true";
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Continue" : "Pause";
    tail?.draw();
  });
  copy.addEventListener("click", () => copied(copy, location.href));
  page.onLeave(() => tail?.close());
  start();
}

class Tail {
  constructor(page, place, type, where, isPaused, publishing, replay) {
    Object.assign(this, { page, place, type, isPaused, publishing, rows: [], fresh: 0, total: 0, skipped: 0, missed: 0, marks: [], over: "" });
    this.status = h("p", { class: "note", role: "status" }, "Waiting for the first event…");
    this.body = h("tbody", { role: "rowgroup" });
    const names = Object.keys(type.attributes);
    this.names = names;
    this.columns = [`Time (${zone()})`, ...names.map((name) => ({ title: name, class: isNumber(type.attributes[name]) ? "num" : undefined })), "Look at"];
    place.replaceChildren(h("div", { class: "panel" }, this.status, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Events" }, h("table", { role: "table", class: "cards" }, head(this.columns), this.body))));
    this.source = new EventSource(`/api/feed?${new URLSearchParams({ client: page.client, type: type.name, where, ...(replay ? { replay } : {}) })}`);
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
      : `${count(rate)} events a second · ${count(this.total)} since the feed began` + (this.skipped ? ` · ${count(this.skipped)} not shown, to keep up` : "")
        + (this.missed ? ` · ${count(this.missed)} missed` : "") + (paused ? " · paused" : "");
    if (paused) return;
    const added = this.rows.slice(0, Math.min(this.fresh, ROWS_MAX)).map((event) => this.row(event));
    this.fresh = 0;
    this.body.prepend(...added);
    while (this.body.rows.length > ROWS_MAX) this.body.deleteRow(-1);
  }

  row(event) {
    const cells = this.names.map((name) => valueOf(event.values, name) !== undefined ? cell(valueOf(event.values, name), this.type.attributes[name])
      : h("td", { class: "sealed-cell" }, this.type.hidden.includes(name) ? "hidden" : "–"));
    return labelled(this.columns, h("tr", { class: "fresh" }, h("td", { class: "short", title: event.at }, timeOf(event.at)), cells,
      h("td", { class: "short" }, h("a", { href: this.page.link("trace", { event: event.id }) }, "Trace"), " · ",
        h("button", { type: "button", class: "chip", onclick: () => this.explain(event) }, "Why"), " ", h("button", { type: "button", class: "chip", onclick: () => this.inspect(event) }, "Inspect"))));
  }

  explain(event) {
    sessionStorage.setItem("tidings.event", JSON.stringify({ type: this.type.name, values: event.values }));
    location.hash = this.page.link("why", { type: this.type.name });
  }

  // All of one event: values in full, as far as the console has them, and what one can do with it.
  inspect(event) {
    const { attributes, hidden } = this.type, json = JSON.stringify(event.values, null, 2);
    const again = () => { opening.close(); this.publishing.fill(event.values); };
    const opening = opened(`Event of type ${this.type.name}`,
      h("dl", { class: "facts" }, h("dt", {}, "Id"), h("dd", { class: "code" }, event.id), h("dt", {}, "Published"), h("dd", {}, momentOf(event.at), h("div", { class: "soft code" }, event.at))),
      table(["Attribute", "Type", "Value"], this.names.map((name) => h("tr", {}, h("td", {}, name), h("td", { class: "soft" }, attributes[name]),
        valueOf(event.values, name) !== undefined ? h("td", {}, h("pre", {}, shown(valueOf(event.values, name))))
          : h("td", { class: "sealed-cell" }, hidden.includes(name) ? "hidden from you" : "not given"))), "Attributes"),
      event.cut.length ? h("p", { class: "warn" }, `Cut here, because they are long: ${event.cut.join(", ")}.`) : null,
      h("p", { class: "actions" }, h("button", { type: "button", onclick: ({ target }) => copied(target, json) }, "Copy as JSON"), h("a", { href: this.page.link("trace", { event: event.id }) }, "Trace"),
        h("button", { type: "button", onclick: () => { opening.close(); this.explain(event); } }, "Why"), this.publishing ? h("button", { type: "button", onclick: again }, "Publish again…") : null));
  }

  close() { this.source.close(); }
}

const isNumber = (kind) => /^(int|double|decimal)/.test(kind);
// An attribute in a group has a name with dots; JSON has it in the group.
const valueOf = (values, name) => (name in values ? values[name] : name.split(".").reduce((inner, part) => inner?.[part], values));
const cell = (value, kind) => (kind === "timestamp" ? h("td", { class: "short", title: value }, timeOf(value)) : h("td", { class: isNumber(kind) ? "num" : undefined }, showValue(value)));

const shown = (value) => (typeof value === "object" ? JSON.stringify(value, null, 2) : String(value));

// A form with a field for each attribute of the type; what is left empty is not given.
class PublishForm {
  constructor(page, known) {
    Object.assign(this, { page, known, inputs: new Map(), fields: h("div", { class: "row fields" }), said: h("p", { role: "status", class: "note" }) });
    const form = h("form", {}, this.fields, h("p", {}, h("button", { class: "main" }, "Publish")), this.said);
    form.addEventListener("submit", (event) => { event.preventDefault(); this.publish(); });
    this.place = h("details", { class: "panel" }, h("summary", {}, "Publish an event"), form);
    this.draw();
  }

  draw() {
    this.inputs.clear();
    this.fields.replaceChildren(...Object.entries(this.known().attributes).map(([name, kind]) => {
      const id = `value-${name}`, input = kind === "bool" ? h("select", { id }, ["", "true", "false"].map((each) => h("option", { value: each }, each || "not given")))
        : h("input", { id, autocomplete: "off", spellcheck: "false", inputmode: isNumber(kind) ? "decimal" : undefined, placeholder: kind === "timestamp" ? new Date().toISOString() : "not given" });
      this.inputs.set(name, [input, kind]);
      return h("div", {}, h("label", { for: id }, `${name} (${kind})`), input);
    }));
  }

  // With the values of an event: publishing it again is a press of the button, and makes a new event.
  fill(values) {
    this.draw();
    for (const [name, [input]] of this.inputs) if (valueOf(values, name) !== undefined) input.value = showValue(valueOf(values, name));
    this.place.open = true;
    this.place.scrollIntoView({ block: "center" });
    this.place.querySelector("button.main").focus();
  }

  async publish() {
    const values = {};
    for (const [name, [input, kind]] of this.inputs) if (input.value !== "") values[name] = typedValue(input.value, kind);
    try {
      const { id } = await post("/api/publish", { client: this.page.client, type: this.known().name, values });
      this.said.replaceChildren("Published: ", h("a", { href: this.page.link("trace", { event: id }) }, id));
    } catch (error) { this.said.replaceChildren(h("span", { class: "bad" }, error.message)); }
  }
}

function typedValue(text, kind) {
  if (["int", "double"].includes(kind) && text.trim() !== "" && Number.isFinite(Number(text)) && (kind === "double" || Number.isSafeInteger(Number(text)))) return Number(text);
  if (kind === "bool" && ["true", "false"].includes(text)) return text === "true";
  if (kind !== "string" && /^[[{]/.test(text)) try { return JSON.parse(text); } catch { /* The server says what is wrong. */ }
  return text;
}
