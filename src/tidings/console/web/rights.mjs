// Rights: who may see what until when, as a matrix for each type.

import { badge, dayOf, empty, get, h, left, s, table } from "/dom.mjs";

export async function show(page) {
  page.root.append(h("h1", {}, "Rights"));
  const { source, rows, types } = await get("/api/rights", { client: page.client });
  if (!page.isShown()) return;
  page.root.append(h("p", { class: "lead" }, source === "registry"
    ? "All rights in your organisation's registry. What another organisation has passed on is known there."
    : `The rights of ${page.client}. An administrator sees those of the whole organisation, if the console was started with --registry.`));
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
    h("td", { class: "code" }, row.where.join(" AND ") || "all events"),
    h("td", { class: "short" }, dayOf(row.until_ms), h("div", { class: "soft" }, row.state === "valid" ? `${left(row.until_ms)} left` : "")),
    h("td", {}, badge(row.state, row.state === "valid" ? "good" : "bad")), h("td", {}, row.by || "–", row.passes_on ? h("div", { class: "soft" }, "may pass it on") : null,
      row.revoked ? whoHasHeard(page, row) : row.digest && row.state === "valid" ? preview(row) : null)));
  return h("div", { class: "panel" }, h("h2", {}, `${type.name} `, h("span", { class: "soft" }, `encrypted: ${type.mode}`)),
    table(["Who", "May", ...type.attributes.map((title) => ({ title, class: "mid" })), "Of events with", "Until", "State", "From"], body, `Rights to ${type.name}`));
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
