// Pipelines: what `tidings run` has done, batch by batch; its quarantine; deliveries by subscriber.

import { badge, count, dayOf, duration, empty, get, h, opened, problem, renew, table, tile } from "/dom.mjs";

export async function show(page) {
  page.root.append(h("h1", {}, "Pipelines"), h("p", { class: "lead" }, "Spark jobs of ", h("code", {}, "tidings run"), ": batches, what could not be used, and who got how much."));
  const list = h("div", {}, h("p", { class: "note" }, "Reading…")), place = h("div", {});
  page.root.append(list, place);
  let before = "";
  page.every(3, async () => {
    const found = await get("/api/pipelines");
    const chosen = page.query.pipeline ?? found.find((each) => !each.problem)?.number;
    const one = chosen === undefined ? null : await get("/api/pipeline", { client: page.client, number: chosen });
    if (!page.isShown() || JSON.stringify([found, one]) === before) return;
    before = JSON.stringify([found, one]);
    renew(list, h("div", { class: "panel" }, found.length ? overview(page, found) : empty("No pipeline is named.",
      h("span", {}, "Start the console with ", h("code", {}, "--pipeline PIPELINE.toml"), ", once for each."))));
    renew(place, ...(one ? pipeline(page, one, chosen) : []));
  });
}

const overview = (page, found) => table(["Pipeline", "From", "To", ...["Events", "Deliveries", "Quarantined"].map((title) => ({ title, class: "num" }))],
  found.map((each) => h("tr", {}, h("td", {}, each.problem ? each.name : h("a", { href: page.link("pipelines", { pipeline: each.number }) }, each.name), h("div", { class: "soft" }, each.file)),
    each.problem ? h("td", { colspan: 5, class: "bad" }, each.problem) : [h("td", {}, each.events_from), h("td", {}, each.deliveries_to),
      ...["events", "deliveries", "quarantined"].map((name) => h("td", { class: "num" }, count(each.counts[name])))])), "Pipelines");

// Events a second between the first and the last of the batches shown that are done.
function rate({ batches }) {
  const done = batches.filter((each) => each.done_ms && each.counts);
  if (done.length < 2) return null;
  const seconds = Math.max(0.001, (done[0].done_ms - done.at(-1).done_ms) / 1000);
  return done.slice(0, -1).reduce((sum, each) => sum + each.counts.events, 0) / seconds;
}

function pipeline(page, one, number) {
  const numbers = ["events", "delivered_from", "unmatched", "quarantined", "deliveries"];
  const titles = { events: "events read", delivered_from: "matched", unmatched: "matched nobody", quarantined: "quarantined", deliveries: "deliveries" };
  return [h("h2", {}, one.name), h("div", { class: "tiles" }, numbers.map((name) => tile(count(one.counts[name]), titles[name])),
      rate(one) === null ? null : tile(`${count(rate(one))}/s`, "events, lately"), one.lag === null ? null : tile(count(one.lag), "waiting at the broker"),
      one.batches[0]?.done_ms ? tile(duration(Math.max(0, (Date.now() - one.batches[0].done_ms) / 1000)), "since the last batch") : null),
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("h2", {}, "Batches"), one.batches.length ? table([{ title: "Batch", class: "num" }, "Done", { title: "Subscriptions", class: "num" }, ...numbers.slice(0, 1).concat(numbers.slice(3)).map((name) => ({ title: titles[name].replace(/^./, (first) => first.toUpperCase()), class: "num" }))],
        one.batches.map((each) => h("tr", {}, h("td", { class: "num" }, each.batch), h("td", { class: "short" }, each.done_ms ? dayOf(each.done_ms) : badge("running, or stopped in it", "warn")),
          h("td", { class: "num" }, `v${each.version}`), numbers.slice(0, 1).concat(numbers.slice(3)).map((name) => h("td", { class: "num" }, each.counts ? count(each.counts[name]) : "–")))), "Batches")
        : empty("No batch yet.", "They appear when `tidings run` has read the first events.")),
      h("div", { class: "panel" }, h("h2", {}, "Deliveries of the last batches"), one.subscribers.length ? table(["Subscriber", { title: "Deliveries", class: "num" }],
        one.subscribers.map((each) => h("tr", {}, h("td", {}, h("button", { type: "button", class: "chip", onclick: () => browse(page, number, each.subscriber) }, each.subscriber)), h("td", { class: "num" }, count(each.deliveries)))), "Deliveries") : empty("None in files.", "Deliveries to Kafka, tables or brokers are looked at there."))),
    quarantine("Quarantined events", one.events), quarantine("Rejected subscriptions", one.subscriptions)];
}

// The deliveries of one subscriber, in a window above the page.
async function browse(page, number, subscriber) {
  const place = h("div", { "aria-live": "polite" }, h("p", { class: "note" }, "Reading…"));
  opened(`Newest deliveries to ${subscriber}`, place);
  try {
    const rows = await get("/api/deliveries", { client: page.client, number, subscriber });
    const names = [...new Set(rows.flatMap(Object.keys))];
    place.replaceChildren(rows.length ? table(names, rows.map((each) => h("tr", {}, names.map((name) => h("td", { class: "code" }, each[name] ?? "")))), "Deliveries") : empty("None in the last batches.", ""));
  } catch (error) { place.replaceChildren(problem(error.message)); }
}

const quarantine = (title, rows) => h("div", { class: "panel" }, h("h2", {}, title), rows.length
  ? table(["Why", "Original"], rows.map((each) => h("tr", {}, h("td", {}, each.reason), h("td", { class: "code" }, h("pre", {}, each.original)))), title)
  : empty("None.", "What cannot be used is kept here with the reason and its original bytes."));
