// Why: an event against conditions, and a condition against the recent events.

import { checked, completing, keptOf, noTypes, typeField, typesOf } from "/condition.mjs";
import { badge, count, empty, errorAt, get, h, post, problem, table } from "/dom.mjs";

const KINDS = { TRUE: "good", FALSE: "bad", NULL: "warn", UNKNOWN: "soft", ERROR: "bad" };
const MEANS = { TRUE: "matches", FALSE: "does not match", NULL: "NULL, so does not match", UNKNOWN: "cannot be told", ERROR: "not a condition" };

export async function show(page) {
  page.root.append(h("h1", {}, "Why"), h("p", { class: "lead" },
    "Which conditions an event matches, and for the others the clause that failed. An attribute that you may not read is unknown here, and the answer says so."));
  const [types, mine] = await Promise.all([typesOf(page), get("/api/subscriptions", { client: page.client }).catch(() => [])]);
  if (!page.isShown()) return;
  if (!types.length) return page.root.append(h("div", { class: "panel" }, noTypes()));
  const type = typeField(types, page.query.type);
  page.root.append(h("div", { class: "row panel" }, h("div", {}, h("label", { for: "type" }, "Type"), type)),
    h("div", { class: "columns even" }, eventPanel(page, type, mine), conditionPanel(page, type, types)));
  type.addEventListener("change", () => page.remember({ type: type.value }));
}

function eventPanel(page, type, mine) {
  const event = h("textarea", { id: "event", rows: "7", spellcheck: "false", value: eventText(type.value) });
  const own = [...new Set(mine.filter((each) => each.type === type.value).map((each) => each.condition))];
  const conditions = h("textarea", { id: "conditions", rows: "5", spellcheck: "false", value: page.query.conditions ?? (own.filter((each) => each !== "TRUE").join("\n") || own.join("\n")) });
  const result = h("div", { "aria-live": "polite" });
  const latest = h("button", { type: "button" }, "Take the newest event");
  latest.addEventListener("click", async () => {
    try {
      const { last } = await post("/api/try", { client: page.client, type: type.value, where: "TRUE" });
      if (last) event.value = JSON.stringify(last.values, null, 2);
      else result.replaceChildren(empty("No event has arrived yet.", "Publish one, or write one by hand."));
    } catch (error) { result.replaceChildren(problem(error.message)); }
  });
  const form = h("form", { class: "panel" }, h("h2", {}, "An event against conditions"),
    h("label", { for: "event" }, "Event, as JSON"), event, h("p", {}, latest),
    h("label", { for: "conditions" }, "Conditions, one on a line (at first your own subscriptions)"), conditions,
    h("p", {}, h("button", { class: "main" }, "Explain")), result);
  form.addEventListener("submit", async (submitted) => {
    submitted.preventDefault();
    let record;
    try { record = JSON.parse(event.value); } catch (error) { return result.replaceChildren(problem(`The event is not JSON: ${error.message}`)); }
    const texts = conditions.value.split("\n").map((each) => each.trim()).filter(Boolean);
    if (!texts.length) return result.replaceChildren(empty("There is no condition.", "Write one above, such as speed > 40."));
    try {
      const { rows, hidden } = await post("/api/why", { client: page.client, type: type.value, event: record, conditions: texts });
      if (page.isShown()) result.replaceChildren(verdicts(rows), hidden.length ? h("p", { class: "note" }, `Hidden from you: ${hidden.join(", ")}.`) : "");
    } catch (error) { result.replaceChildren(problem(error.message)); }
  });
  return form;
}

function eventText(type) {
  const kept = JSON.parse(sessionStorage.getItem("tidings.event") ?? "null");
  return kept && kept.type === type ? JSON.stringify(kept.values, null, 2) : "{}";
}

const verdicts = (rows) => table(["Condition", "Outcome", "Decided by"], rows.map((row) => h("tr", {},
  h("td", { class: "code" }, row.condition, relations(row)),
  h("td", {}, badge(row.outcome, KINDS[row.outcome]), h("div", { class: "soft" }, MEANS[row.outcome])),
  h("td", { class: "code" }, row.error ? errorAt(row.condition, row.error) : row.decided_by.map((each) => h("div", {}, each)),
    row.needs?.length ? h("div", { class: "soft" }, `depends on ${row.needs.join(", ")}, which you may not read`) : null))), "Verdicts");

const relations = (row) => [["covers", row.covers], ["is covered by", row.covered_by]].filter(([, others]) => others?.length)
  .map(([word, others]) => h("div", { class: "soft" }, `${word} ${others.join(" and ")}`));

function conditionPanel(page, type, types) {
  const where = h("textarea", { id: "tried", class: "code", rows: "3", spellcheck: "false", value: page.query.where ?? "" });
  const result = h("div", { "aria-live": "polite" });
  completing(where, () => Object.keys(types.find((each) => each.name === type.value).attributes));
  const form = h("form", { class: "panel" }, h("h2", {}, "A condition against recent events"),
    h("label", { for: "tried" }, "Condition"), where, checked(page, where, () => type.value),
    h("p", {}, h("button", { class: "main" }, "Try on recent events")), result);
  form.addEventListener("submit", async (submitted) => {
    submitted.preventDefault();
    page.remember({ type: type.value, where: where.value });
    result.replaceChildren(h("p", { class: "note" }, "Reading events…"));
    try {
      const found = await post("/api/try", { client: page.client, type: type.value, where: where.value, others: keptOf(type.value) });
      if (page.isShown()) result.replaceChildren(found.check.ok ? outcome(page, found) : errorAt(where.value, found.check));
    } catch (error) { result.replaceChildren(problem(error.message)); }
  });
  return form;
}

// Which of one's own subscriptions, and of the conditions kept in this browser, it covers and is covered by.
const covering = ({ related }) => (related.length ? table(["It", "Condition"], related.map((each) => h("tr", {}, h("td", { class: "short" }, each.relation), h("td", { class: "code" }, each.condition))), "Covering")
  : h("p", { class: "note" }, "It covers none of your subscriptions and kept conditions, and none covers it."));

function outcome(page, found) {
  if (!found.events) return h("div", {}, covering(found), empty("No event has arrived since this page asked.", "Try again in a moment; the console keeps the last thousand while you look."));
  const parts = [["TRUE", "fill-good"], ["FALSE", "fill-bad"], ["NULL", "fill-warn"], ["UNKNOWN", "fill-soft"]].filter(([name]) => found.outcomes[name]);
  const bar = h("div", { class: "stack", role: "img", "aria-label": parts.map(([name]) => `${name} ${found.outcomes[name]}`).join(", ") }, parts.map(([name, kind]) => {
    const part = h("i", { class: kind });
    part.style.width = `${(100 * found.outcomes[name]) / found.events}%`;
    return part;
  }));
  return h("div", {}, covering(found), h("p", {}, `Of the last ${count(found.events)} events `, h("b", { class: "good" }, `${count(found.outcomes.TRUE ?? 0)} match`), ".", found.left_out ? ` The condition is long: ${count(found.left_out)} older events were left out.` : ""), bar,
    h("p", {}, parts.map(([name]) => [badge(`${name} ${count(found.outcomes[name])}`, KINDS[name]), " "])),
    found.failed.length ? table(["Clause that decided", { title: "Events", class: "num" }], found.failed.map(([clause, times]) => h("tr", {}, h("td", { class: "code" }, clause), h("td", { class: "num" }, count(times)))), "Clauses") : null,
    found.matched.length ? h("p", {}, "Matched last: ", found.matched.slice(0, 3).map((id) => [h("a", { href: page.link("trace", { event: id }) }, `…${id.slice(-8)}`), " "])) : null,
    found.hidden.length ? h("p", { class: "note" }, `Hidden from you: ${found.hidden.join(", ")}.`) : null);
}
