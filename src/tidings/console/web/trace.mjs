// Trace: the route of one event over organisations, as a timeline, and who could read which attribute.

import { badge, empty, get, h, table } from "/dom.mjs";
import { savers } from "/export.mjs";
import { networkMap } from "/map.mjs";

export async function show(page) {
  const id = h("input", { id: "event", class: "code", value: page.query.event ?? "", placeholder: "565518d97b4372acbf8c7dde3955c0b8.0.1", spellcheck: "false", autocomplete: "off" });
  const form = h("form", { class: "panel row" }, h("div", { class: "grow" }, h("label", { for: "event" }, "Event id"), id), h("button", { class: "main" }, "Trace"));
  form.addEventListener("submit", (event) => { event.preventDefault(); location.hash = page.link("trace", { event: id.value.trim() }); });
  const result = h("div", { "aria-live": "polite" });
  page.root.append(h("h1", {}, "Trace"), h("p", { class: "lead" },
    "Each broker that had the event, when, and what it could read. Each broker reports for itself; a trace shows names of attributes, never values."), form, result);
  if (!page.query.event) return result.append(h("div", { class: "panel" }, empty("Which event?",
    h("span", {}, "Follow Trace beside an event on ", h("a", { href: page.link("events") }, "Events"), ", or put in an id as ", h("code", {}, "tidings publish -o json"), " prints it."))));
  result.append(h("p", { class: "note" }, "Asking the brokers on its route…"));
  const [hops, network] = await Promise.all([get("/api/trace", { client: page.client, event: page.query.event }), get("/api/network")]);
  if (!page.isShown()) return;
  result.replaceChildren(...(hops.length ? [timeline(hops), matrix(hops), deliveries(hops), onMap(page, hops, network)] : [h("div", { class: "panel" },
    empty("No broker on the route remembers this event.", "Brokers forget the route of an event after a few thousand others."))]));
}

function onMap(page, hops, network) {
  const ids = new Map(network.brokers.map((each) => [`${each.domain}/${each.name}`, each.id]));
  const path = new Set(hops.map((hop) => [ids.get(nameOf(hop)), ids.get(hop.came_from)].sort().join(" ")));
  const map = h("div", {}, networkMap(network, (broker) => page.link("network", { broker: broker.id }), { path }));
  return h("div", { class: "panel" }, h("h2", {}, "On the map"), map, h("div", { class: "row" }, savers(map, "trace")));
}

const nameOf = (hop) => `${hop.domain}/${hop.broker}`;

function timeline(hops) {
  const first = hops[0].ago_s, span = Math.max(0.001, first - hops.at(-1).ago_s);
  const rows = hops.map((hop) => {
    const after = first - hop.ago_s, before = hops.find((each) => nameOf(each) === hop.came_from);
    const from = before ? first - before.ago_s : after;
    const bar = h("div", { class: "bar" }), track = h("div", { class: "track" }, bar);
    bar.style.marginLeft = `${(96 * from) / span}%`;
    bar.style.width = `${Math.max(1.5, (96 * (after - from)) / span)}%`;
    return h("tr", {}, h("td", { class: "short" }, nameOf(hop)), h("td", { class: "short soft" }, hop.came_from || "published here"),
      h("td", { class: "num short" }, `${(1000 * after).toFixed(1)} ms`), h("td", { class: "way" }, track),
      h("td", {}, hop.refused ? badge(`refused: ${hop.refused}`, "bad") : hop.sent.length ? `sent to ${[...new Set(hop.sent.map((each) => each.to))].join(", ")}` : "ends here"));
  });
  return h("div", { class: "panel" }, h("h2", {}, "Timeline"),
    table(["Broker", "From", { title: "After", class: "num" }, "The way here", "Then"], rows, "Timeline"));
}

// Organisations × attributes: an organisation could read what one of its brokers could. Its brokers are below it.
function matrix(hops) {
  const names = [...new Set(hops.flatMap((hop) => [...hop.readable, ...hop.hidden]))].sort();
  const cell = (some, name) => h("td", { class: "mid" }, some.some((hop) => hop.readable.includes(name)) ? h("span", { class: "good" }, "reads")
    : some.some((hop) => hop.hidden.includes(name)) ? h("span", { class: "sealed-cell" }, "sealed") : "–");
  const rows = [...new Set(hops.map((hop) => hop.domain))].sort().flatMap((domain) => {
    const own = hops.filter((hop) => hop.domain === domain), brokers = [...new Set(own.map(nameOf))];
    return [h("tr", { class: "group" }, h("th", { scope: "row" }, domain), names.map((name) => cell(own, name))),
      ...brokers.map((broker) => h("tr", {}, h("td", { class: "indented" }, broker), names.map((name) => cell(own.filter((hop) => nameOf(hop) === broker), name))))];
  });
  return h("div", { class: "panel" }, h("h2", {}, "Who could read which attribute"), names.length
    ? table(["Organisation", ...names.map((title) => ({ title, class: "mid" }))], rows, "Who could read which attribute") : empty("The event has no attributes.", ""));
}

function deliveries(hops) {
  const rows = hops.flatMap((hop) => [
    ...hop.told.map((each) => h("tr", {}, h("td", {}, nameOf(hop)), h("td", {}, each.client), h("td", {}, badge("delivered", "good")), h("td", {}, ""))),
    ...hop.missed.map((each) => h("tr", {}, h("td", {}, nameOf(hop)), h("td", {}, each.client || "a durable subscription"), h("td", {}, badge("not delivered", "soft")), h("td", {}, each.why)))]);
  return h("div", { class: "panel" }, h("h2", {}, "Who received it"), rows.length ? table(["Broker", "Client", "Outcome", "Why"], rows, "Who received it")
    : empty("No subscription of your organisation's brokers was concerned.", "What other organisations deliver is theirs to know."));
}
