// The network: a map of organisations, brokers and links, and the page of one broker.

import { chart, levels, rates } from "/chart.mjs";
import { badge, bytes, count, dayOf, duration, empty, get, h, left, post, problem, renew, sealing, table, tile } from "/dom.mjs";
import { savers } from "/export.mjs";
import { colour, kindTitle, kindsOf, legend, networkMap, organisations } from "/map.mjs";

// The broker's names of what it counts, in words.
const COUNTERS = {
  published: "events published here", notified: "deliveries to subscriptions", refused: "messages of other brokers refused",
  undelivered_replay: "further copies of events, not delivered again", undelivered_key: "events whose key did not come in time",
  undelivered_fresh: "events that were too old", "missed by the overlay": "events that a spot check brought, and the overlay did not",
  control_refused: "messages about keys refused", joins_refused: "requests for keys refused", undelivered_signature: "events that were not genuine",
  "rate limited": "events refused: too fast", "connections refused": "connections refused: too many", "handshakes failed": "connections that did not prove who they are",
};
const ENDS_SOON_D = 14;

const KINDS = { up: "good", linked: "good", joining: "warn", draining: "warn", stale: "bad", stuck: "bad", away: "bad" };
const MEANS = { up: "up", linked: "linked", joining: "joining", draining: "draining", stale: "no answer", stuck: "disk stuck", away: "not linked" };

export async function show(page) {
  if (page.query.broker) return showBroker(page);
  const map = h("div", {}, h("p", { class: "note" }, "Asking the brokers…"));
  const side = h("div", {}), kinds = h("select", { id: "kind" });
  const bar = h("div", { class: "row" }, h("div", {}, h("label", { for: "kind" }, "Map"), kinds), savers(map, "network"));
  page.root.append(h("h1", {}, "Network"),
    h("p", { class: "lead" }, "Brokers and links, as the brokers of your clients report them, every two seconds. Select a broker for its page."),
    h("div", { class: "columns" }, h("div", { class: "panel" }, bar, map), side));
  kinds.addEventListener("change", () => { page.remember({ map: kinds.value }); page.query.map = kinds.value; draw(page, latest, map, side, kinds); });
  let latest = null, before = "";
  page.every(2, async () => {
    const found = await get("/api/network");
    if (!page.isShown() || JSON.stringify(found) === before) return;
    before = JSON.stringify(found);
    latest = found;
    draw(page, found, map, side, kinds);
  });
}

function draw(page, found, map, side, kinds) {
  const problems = found.problems.map((each) => problem(`${each.client}: ${each.why}`));
  if (!found.brokers.length) {
    renew(map, empty("No broker has answered yet.", "Start one with `tidings broker run`; the map appears by itself."));
    renew(side, ...problems);
    return;
  }
  const href = (broker) => page.link("network", { broker: broker.id });
  const known = kindsOf(found), kind = known.includes(page.query.map) ? page.query.map : known[0];
  if ([...kinds.options].map((each) => each.value).join() !== known.join()) kinds.replaceChildren(...known.map((each) => h("option", { value: each }, kindTitle(each))));
  kinds.value = kind;
  renew(map, networkMap(found, href, { kind }), legend(found, kind));
  const orgs = organisations(found.brokers);
  renew(side, ...problems,
    h("div", { class: "tiles" }, tile(orgs.length, "organisations"), tile(found.brokers.length, "brokers"),
      tile(found.links.filter((each) => each.up).length, "links up"), tile(found.overlay, "overlay")),
    h("div", { class: "panel" }, h("h2", {}, "Brokers"), table(
      ["Broker", ...["Clients", "In /s", "Out /s", "Waiting"].map((title) => ({ title, class: "num" }))],
      found.brokers.map((each) => h("tr", {},
        h("td", {}, h("a", { href: href(each) }, `${each.domain}/${each.name}`), " ", badge(MEANS[each.state] ?? each.state, KINDS[each.state] ?? "soft"), each.why ? h("div", { class: "soft" }, each.why) : null),
        h("td", { class: "num" }, each.clients === undefined ? "–" : count(each.clients)),
        ...[each.published_per_s, each.delivered_per_s, each.waiting].map((value, at) => h("td", { class: "num" }, value === undefined ? "–" : count(value),
          at === 2 && value ? h("div", { class: "soft" }, `for ${duration(each.oldest_s)}`) : null)))), "Brokers"),
      h("p", { class: "note" }, "– : known to brokers only that none of your clients is attached to.")));
}

async function showBroker(page) {
  const body = h("div", {}, h("p", { class: "note" }, "Asking the broker…")), actions = h("div", { class: "row" }), said = h("p", { role: "status" });
  page.root.append(h("p", {}, h("a", { href: page.link("network") }, "← Network")), body, actions, said);
  page.every(2, async () => {
    const network = await get("/api/network");
    const broker = network.brokers.find((each) => each.id === page.query.broker);
    if (!page.isShown()) return;
    if (!broker) return body.replaceChildren(empty("This broker is not on the map.", "It may have left, or its neighbours have not reported yet."));
    if (!broker.client) return body.replaceChildren(h("h1", {}, `${broker.domain}/${broker.name}`), unattached(broker));
    const { status, points, problem: why } = await get("/api/broker", { client: broker.client });
    const mine = await get("/api/mine", { client: broker.client }).catch(() => null);
    if (!page.isShown() || !status) return;
    renew(body, ...brokerPage(broker, status, points, why), ...(mine ? clientPage(broker.client, mine) : []));
    renew(actions, ...(page.me.may_act ? buttons(page, broker, mine, said) : []));
  });
}

const unattached = (broker) => h("div", { class: "panel" },
  empty(broker.state === "away" ? `Not linked: ${broker.why}` : "Linked, at " + broker.address,
    "A broker reports to its own organisation's clients. Start the console with --as of one of them for more."));

function brokerPage(broker, status, points, why) {
  const linked = status.linked.map((each) => h("tr", {}, h("td", {}, String(each.name).replace(/^broker /, "")), h("td", {}, each.address),
    h("td", { class: "num" }, count(each.owed)), h("td", { class: "num" }, bytes(each.queued)), h("td", { class: "num" }, duration(each.silent_s)), h("td", {}, badge("linked", "good"))));
  const away = status.unlinked.map((each) => h("tr", {}, h("td", {}, `${each.id.slice(0, 8)}…`), h("td", {}, each.address),
    h("td", { class: "num" }, count(status.owed[each.id] ?? 0)), h("td", { class: "num" }, "–"), h("td", { class: "num" }, "–"), h("td", {}, badge("not linked", "bad"), " ", each.why)));
  return [
    h("h1", {}, `${broker.domain}/${broker.name} `, badge(MEANS[broker.state] ?? broker.state, KINDS[broker.state] ?? "soft")),
    h("p", { class: "lead" }, `Listening at ${status.address}, version ${status.version}, running for ${duration(status.uptime_s)}; its certificate ends `, ending(status.certificate_ends_ms), `. Seen as ${broker.client}.`),
    why ? problem(why) : null, status.stuck ? problem(`The journal cannot be written: ${status.stuck_why}. Free some disk space, or check its folder.`) : null,
    h("div", { class: "tiles" }, tile(count(status.counts.published ?? 0), "events published here"), tile(count(status.subscriptions), "subscriptions"),
      tile(count(status.connected.length), "clients connected"), tile(count(status.waiting), "events waiting"),
      tile(bytes(status.journal_bytes), "journal"), tile(bytes(status.disk_free_bytes), "disk free")),
    h("div", { class: "charts" }, chart("Published", rates(points, "published"), "/s"), chart("Delivered to subscriptions", rates(points, "delivered"), "/s"),
      chart("Events waiting", levels(points, "waiting"), ""), chart("Queued on links", levels(points, "queued_bytes"), "B")),
    h("div", { class: "panel" }, h("h2", {}, "Links"), linked.length + away.length ? table(["Broker", "Address", ...["Unacknowledged", "Queued", "Last heard"].map((title) => ({ title, class: "num" })), "State"], [...linked, ...away], "Links")
      : empty("No links.", "Name another broker with `[[peer]]` in broker.toml.")),
    h("div", { class: "panel" }, h("h2", {}, "Clients"), status.connected.length ? table(["Client", ...["Published", "Delivered live", "Lost"].map((title) => ({ title, class: "num" }))],
      status.connected.map((each) => h("tr", {}, h("td", {}, each.client), ...[each.published, each.told, each.lost].map((value) => h("td", { class: "num" }, count(value))))), "Clients")
      : empty("Nobody is connected.", "`tidings subscribe` and `tidings publish` connect as a client.")),
    h("div", { class: "panel" }, h("h2", {}, "Types and keys"), status.types.length ? table(["Type", "Encrypted", { title: "Subscriptions", class: "num" }, "Key epoch", "In use since", "New key by"],
        status.types.map((each) => h("tr", {}, h("td", {}, each.name), h("td", {}, sealing(each.mode)), h("td", { class: "num" }, count(each.subscriptions)),
          h("td", {}, epochs(each.epochs)), h("td", {}, each.keys_since_ms === null ? "–" : dayOf(each.keys_since_ms)), h("td", {}, each.keys_until_ms === null ? "–" : `${dayOf(each.keys_until_ms)}, in ${left(each.keys_until_ms)}`))), "Types and keys") : empty("No types.", "Name one with `types` in broker.toml.")),
    h("div", { class: "panel" }, h("h2", {}, "Counters"), table(["What", { title: "Since start", class: "num" }],
        Object.entries(status.counts).sort().map(([name, value]) => h("tr", {}, h("td", {}, COUNTERS[name] ?? name.replaceAll("_", " ")), h("td", { class: "num" }, count(value)))), "Counters")),
  ].filter(Boolean);
}

function buttons(page, broker, mine, said) {
  const act = async (action, question) => {
    if (!confirm(question)) return;
    try { said.textContent = `${action}: ${JSON.stringify(await post("/api/act", { client: broker.client, action }))}`; }
    catch (error) { said.replaceChildren(h("span", { class: "bad" }, error.message)); }
  };
  const isAdministrator = page.me.clients.some((each) => each.name === broker.client && each.administers);
  return [isAdministrator ? h("button", { type: "button", onclick: () => act("drain", `Drain ${broker.domain}/${broker.name}? It delivers what it holds, and stops.`) }, "Drain this broker") : null,
    mine?.letters.length ? h("button", { type: "button", onclick: () => act("replay", `Try ${mine.letters.length} dead letters of ${broker.client} again?`) }, "Replay dead letters") : null].filter(Boolean);
}

// What this client has at the broker; other clients' is theirs.
const clientPage = (name, { certificate_ends_ms: ends, subscriptions, letters }) => [
  h("div", { class: "panel" }, h("h2", {}, `Subscriptions of ${name}`), h("p", {}, "Its certificate ends ", ending(ends), "."),
    subscriptions.length ? table(["Name", "Type", "Condition", { title: "Waiting", class: "num" }], subscriptions.map((each) => h("tr", {}, h("td", {}, each.name || h("span", { class: "soft" }, "live")),
      h("td", {}, each.type), h("td", { class: "code" }, each.condition), h("td", { class: "num" }, each.waiting === undefined ? "–" : count(each.waiting)))), "Subscriptions")
      : empty("None.", "`tidings subscribe TYPE CONDITION --durable NAME` makes one that waits while you are away.")),
  h("div", { class: "panel" }, h("h2", {}, `Dead letters of ${name}`), letters.length ? table(["Subscription", "Type", "Since", "Why"], letters.map((each) => h("tr", {},
    h("td", {}, each.subscription), h("td", {}, each.type), h("td", {}, dayOf(each.at_us / 1000)), h("td", {}, each.why))), "Dead letters")
    : empty("None.", "Events that could not be opened, or that a subscriber rejected, are kept here; `tidings dlq replay` tries them again."))];

function ending(ms) {
  const soon = ms - Date.now() < ENDS_SOON_D * 86_400_000;
  return h("span", { class: soon ? "bad" : undefined }, `${dayOf(ms)}, ${ms > Date.now() ? `in ${left(ms)}` : "so it has ended"}`);
}

function epochs(held) {
  const newest = Object.values(held ?? {}).map((each) => Math.max(...each));
  return newest.length ? `${Math.max(...newest)}, of ${newest.length} key group${newest.length > 1 ? "s" : ""}` : "none held";
}
