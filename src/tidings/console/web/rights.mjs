// Rights: who may see what until when, as a matrix for each type.

import { badge, dayOf, empty, get, h, left, post, problem, s, sealing, table } from "/dom.mjs";

export async function show(page) {
  page.root.append(h("h1", {}, "Rights"));
  const { source, rows, types, holders = [] } = await get("/api/rights", { client: page.client });
  if (!page.isShown()) return;
  page.mayChange = page.me.clients.some((each) => each.name === page.client && each.may_change_rights);
  page.root.append(h("p", { class: "lead" }, source === "registry"
    ? "All rights in your organisation's registry. What another organisation has passed on is known there."
    : `The rights of ${page.client}. An administrator sees those of the whole organisation, if the console was started with --registry.`));
  if (page.mayChange && types.length) page.root.append(grantForm(page, types, holders));
  if (!rows.length) return page.root.append(h("div", { class: "panel" }, empty("No rights.",
    h("span", {}, "An owner gives one with ", h("code", {}, "tidings grant"), "; ", h("code", {}, "tidings grant accept"), " takes it."))));
  for (const type of types) {
    const mine = rows.filter((row) => row.type === type.name);
    if (mine.length) page.root.append(matrix(page, type, mine), graph(type, mine) ?? "");
  }
}

function matrix(page, type, rows) {
  const sorted = rows.sort((a, b) => (a.who < b.who ? -1 : a.who > b.who ? 1 : a.until_ms - b.until_ms));
  const body = sorted.map((row) => h("tr", {}, h("td", { class: "short" }, row.who), h("td", {}, row.actions.join(", ")),
    type.attributes.map((name) => h("td", { class: "mid" }, row.attributes.includes(name)
      ? h("span", { class: "good", title: "may see" }, "✓", h("span", { class: "skip" }, " may see")) : h("span", { class: "sealed-cell", title: "may not see" }, "·"))),
    h("td", { class: row.where.length ? "code" : "" }, row.where.join(" AND ") || "all events"),
    h("td", { class: "short" }, dayOf(row.until_ms), h("div", { class: "soft" }, row.state === "valid" ? `${left(row.until_ms)} left` : "")),
    h("td", {}, badge(row.state, row.state === "valid" ? "good" : "bad")), h("td", {}, row.by || "–", row.passes_on ? h("div", { class: "soft" }, "may pass it on") : null,
      row.revoked ? whoHasHeard(page, row) : row.digest && row.state === "valid" ? (page.mayChange ? changes(page, type, row) : preview(row)) : null)));
  return h("div", { class: "panel" }, h("h2", {}, `${type.name} `, h("span", { class: "soft" }, `encrypted: ${sealing(type.mode)}`)),
    table(["Who", "May", ...type.attributes.map((title) => ({ title, class: "mid" })), "Of events with", "Until", "State", "From"], body, `Rights to ${type.name}`));
}

// ── Changes, with the organisation's key at the server ──

const labelled = (label, input) => h("div", {}, h("label", {}, label, input));
const ticks = (names, chosen = names) => { const boxes = names.map((name) => [name, h("input", { type: "checkbox", checked: chosen.includes(name) })]);
  return { element: h("div", { class: "chips" }, boxes.map(([name, box]) => h("label", { class: "chip tick" }, box, name))), read: () => boxes.filter(([, box]) => box.checked).map(([name]) => name) }; };

function grantForm(page, types, holders) {
  const type = h("select", {}, types.map((each) => h("option", { value: each.name }, each.name)));
  const to = h("input", { list: "holders", autocomplete: "off", placeholder: "police/desk, or ccs", spellcheck: "false" });
  const may = ticks(["subscribe", "publish"], ["subscribe"]), where = h("input", { class: "code", placeholder: "all events", spellcheck: "false" }), days = h("input", { type: "number", min: 0, step: "any", placeholder: "renewed until revoked" });
  const pass = ticks(["may pass it on"], []), place = h("div", {});
  let shown = null;
  const drawAttributes = () => { shown = ticks(types.find((each) => each.name === type.value).attributes); place.replaceChildren(shown.element); };
  type.addEventListener("change", drawAttributes);
  drawAttributes();
  return h("details", { class: "panel" }, h("summary", {}, "Give a right"),
    h("div", { class: "row fields" }, labelled("Type", type), labelled("To", to), labelled("Only events with", where), labelled("For how many days", days)),
    h("datalist", { id: "holders" }, holders.map((each) => h("option", { value: each }))),
    h("div", { class: "soft" }, "May"), may.element, h("div", { class: "soft" }, "Sees"), place, h("div", { class: "soft" }, "And"), pass.element,
    confirmed(page, "Give it…", () => ({ kind: "grant", type: type.value, to: to.value.trim(), actions: may.read(), attributes: all(shown.read(), types.find((each) => each.name === type.value).attributes), where: where.value, days: days.value === "" ? null : Number(days.value), may_pass_on: pass.read().length > 0 })));
}
// Every attribute ticked means all, also those of later versions of the type.
const all = (ticked, names) => (ticked.length === names.length ? [] : ticked);

function changes(page, type, row) {
  const reason = h("input", { placeholder: "for the audit trail" }), seen = ticks(row.attributes), may = ticks(row.actions), where = h("input", { class: "code", spellcheck: "false", placeholder: "nothing more" }), days = h("input", { type: "number", min: 0, step: "any", placeholder: "as it is" });
  return [h("details", {}, h("summary", {}, "Revoke"), labelled("Reason", reason), confirmed(page, "Show what would end…", () => ({ kind: "revoke", digest: row.digest, reason: reason.value }))),
    h("details", {}, h("summary", {}, "Narrow"), h("div", { class: "soft" }, "May"), may.element, h("div", { class: "soft" }, "Sees"), seen.element, labelled("Also only events with", where), labelled("For how many days", days),
      confirmed(page, "Show what would change…", () => ({ kind: "narrow", digest: row.digest, actions: may.read(), attributes: seen.read(), where: where.value, days: days.value === "" ? null : Number(days.value) })))];
}

// First what it would come to; then, on a second press, the change, if it is still the same.
function confirmed(page, title, read) {
  const place = h("div", { "aria-live": "polite" });
  const first = h("button", { type: "button", onclick: async () => {
    const asked = { client: page.client, ...read() };
    try {
      if (asked.attributes && asked.kind === "narrow" && !asked.attributes.length) throw new Error("a right that shows nothing is no right; revoke it instead");
      const seen = await post("/api/rights/preview", asked);
      if (page.isShown()) place.replaceChildren(whatItComesTo(seen), h("button", { type: "button", class: "main", onclick: () => carryOut(page, place, asked, seen) }, { grant: "Give it now", narrow: "Narrow it now", revoke: "Revoke it now" }[seen.kind]));
    } catch (error) { place.replaceChildren(problem(error.message)); }
  } }, title);
  return h("div", {}, h("p", {}, first), place);
}

const whatItComesTo = ({ kind, who, ends, tokens, begins }) => h("div", {},
  begins ? h("p", {}, h("b", {}, who), ` ${kind === "narrow" ? "keeps" : "gets"} the right to ${begins.actions.join(" and ")} ${begins.type}: ${begins.attributes.join(", ")}${begins.where.length ? `, where ${begins.where.join(" AND ")}` : ""}, ${begins.until_ms ? `until ${dayOf(begins.until_ms)}` : "renewed until it is revoked"}${begins.may_pass_on ? ", and may pass it on" : ""}.`) : null,
  kind === "grant" ? null : h("p", {}, kind === "revoke" ? h("span", {}, h("b", {}, who), " loses this right. ") : "The wider right is revoked. ",
    ends.length ? `With it end the rights that were derived from it, of ${ends.join(", ")}.` : "Nobody else has a right derived from it here.", ` ${tokens} token${tokens === 1 ? "" : "s"} would be refused, by brokers that use this registry within a second.`));

async function carryOut(page, place, asked, seen) {
  place.replaceChildren(h("p", { class: "note" }, "Changing…"));
  try {
    const done = await post("/api/rights/change", { ...asked, mark: seen.mark });
    if (!page.isShown()) return;
    place.replaceChildren(h("p", { class: "good" }, `Done${done.digest ? `: ${done.digest}` : ""}. `, h("a", { href: page.link("rights", { at: Date.now() }) }, "Show the rights as they are now")),
      done.text ? handOver(done) : "", ...done.revoked.map((each) => heardOf(page, each)));
  } catch (error) { place.replaceChildren(problem(error.message)); }
}

// A right of another organisation's is a file, which that organisation takes with a command.
function handOver(done) {
  const url = URL.createObjectURL(new Blob([done.text], { type: "application/json" }));
  setTimeout(() => URL.revokeObjectURL(url), 600_000);
  return h("p", {}, h("a", { href: url, download: done.file }, `Save ${done.file}`), " and hand it over; there: ", h("code", {}, `tidings grant accept ${done.file}`));
}

// Who has heard, again and again, until all have.
function heardOf(page, id) {
  const place = h("div", { "aria-live": "polite" });
  let done = false;
  page.every(1, async () => {
    if (done) return;
    const rows = await get("/api/heard", { client: page.client, revocation: id });
    done = rows.every((each) => each.heard);
    place.replaceChildren(h("div", {}, "Who has heard:"), ...rows.map((each) => h("div", {}, each.broker, " ", badge(each.heard ? "has heard" : "not yet", each.heard ? "good" : "warn"))),
      rows.length ? "" : "This broker has no links.", done ? "" : h("div", { class: "note" }, "Who is away hears of it when it connects again."));
  });
  return place;
}

// What revoking a right would end. The key that can do it is not the console's, so it shows the command.
const preview = (row) => h("details", {}, h("summary", {}, "If it is revoked"),
  h("p", {}, row.ends.length ? `${row.who} loses it, and with it ${row.ends.join(", ")}.` : `${row.who} loses it; nobody has a right derived from it here.`,
    " Brokers that use this registry refuse it within a second, and tell the others."),
  h("pre", {}, `tidings grant revoke ${row.digest} --org FOLDER`));

function whoHasHeard(page, row) {
  const place = h("div", {}, h("p", { class: "note" }, "Asking the broker…"));
  const details = h("details", {}, h("summary", {}, "Who has heard"), place);
  details.addEventListener("toggle", async () => {
    if (!details.open) return;
    const rows = await get("/api/heard", { client: page.client, revocation: row.revoked }).catch((error) => [{ broker: error.message, heard: false }]);
    place.replaceChildren(...(rows.length ? rows.map((each) => h("div", {}, each.broker, " ", badge(each.heard ? "has heard" : "not yet", each.heard ? "good" : "warn"))) : ["This broker has no links."]));
  });
  return details;
}

// Who gave to whom: a column for each step from the owner.
const COLUMN = 220, ROW = 30, GRAPH_MAX = 80;

function graph(type, rows) {
  const chains = rows.filter((row) => row.chain && row.state === "valid").map((row) => [...row.chain, row.who]);
  const column = new Map(), edges = new Set();
  for (const chain of chains) chain.forEach((name, at) => {
    column.set(name, Math.max(at, column.get(name) ?? 0));
    if (at && chain[at - 1] !== name) edges.add(JSON.stringify([chain[at - 1], name]));
  });
  if (!edges.size || column.size > GRAPH_MAX) return null;
  const filled = [], spot = new Map();
  for (const [name, at] of [...column].sort(([a], [b]) => (a < b ? -1 : 1))) { filled[at] = (filled[at] ?? 0) + 1; spot.set(name, [at, filled[at]]); }
  const tall = Math.max(...filled.filter(Boolean)), height = tall * ROW + 12;
  const xy = (name) => { const [at, n] = spot.get(name); return [14 + at * COLUMN, (height * n) / (filled[at] + 1)]; };
  const lines = [...edges].map((each) => { const [from, to] = JSON.parse(each), [x1, y1] = xy(from), [x2, y2] = xy(to), half = (x1 + x2) / 2 + 40;
    return s("path", { class: "link", d: `M${x1 + 8 + from.length * 7} ${y1} C${half} ${y1} ${half} ${y2} ${x2 - 8} ${y2}` }); });
  const names = [...spot.keys()].map((name) => { const [x, y] = xy(name); return s("text", { x, y: y + 4 }, name); });
  const wide = 14 + filled.length * COLUMN;
  const drawing = s("svg", { viewBox: `0 0 ${wide} ${height}`, width: wide, height, role: "img",
    "aria-label": `Grants of ${type.name}: ${[...edges].map((each) => JSON.parse(each).join(" to ")).join(", ")}` }, lines, names);
  return h("div", { class: "panel" }, h("h2", {}, `Who gave rights to ${type.name} to whom`), h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Graph of grants" }, drawing));
}
