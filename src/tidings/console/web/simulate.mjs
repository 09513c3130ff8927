// A simulated network to watch and to break. The world is at the server, one for each session; this page steps it.

import { badge, bytes, count, empty, get, h, post, problem, renew, table, tile } from "/dom.mjs";
import { savers } from "/export.mjs";
import { kindTitle, kindsOf, legend, networkMap } from "/map.mjs";

const PLAY_MS = 250, WAITING_MAX = 8;

export async function show(page) {
  const { protocols, nodes_max: most } = await get("/api/simulations");
  if (!page.isShown()) return;
  const field = (id, label, input) => h("div", {}, h("label", { for: id }, label), input);
  const number = (id, value, min, max) => h("input", { id, type: "number", min, max, value });
  const protocol = h("select", { id: "protocol" }, protocols.map((each) => h("option", { value: each }, each)));
  protocol.value = protocols.includes(page.query.protocol) ? page.query.protocol : "irbr";
  const nodes = number("nodes", page.query.nodes ?? 24, 2, most), subscriptions = number("subscriptions", page.query.subscriptions ?? 12, 0, 200), seed = number("seed", page.query.seed ?? 7, 0, 1000000);
  const form = h("form", { class: "row choices" }, field("protocol", "Protocol", protocol), field("nodes", "Nodes", nodes), field("subscriptions", "Subscriptions", subscriptions), field("seed", "Seed", seed),
    h("button", { class: "main" }, "Begin"));
  const place = h("div", {}), bar = h("div", { class: "row steps" }), said = h("div", { "aria-live": "polite" });
  page.root.append(h("h1", {}, "Simulate"), h("p", { class: "lead" },
    "A made-up network in virtual time: step through it, see messages on their way, and break it. The same seed and the same steps show the same again."), h("div", { class: "panel" }, form, bar), said, place);
  const choices = () => ({ protocol: protocol.value, nodes: Number(nodes.value), subscriptions: Number(subscriptions.value), seed: Number(seed.value) });
  let desk = null, turn = 0;
  const begin = async (action) => {
    const mine = ++turn;
    desk?.stop();
    said.replaceChildren();
    try {
      const view = await post("/api/simulate", { action, ...choices() });
      if (!page.isShown() || mine !== turn) return;
      desk = new Desk(page, place, bar, said, choices());
      desk.draw(view);
      page.remember(choices());
    } catch (error) { place.replaceChildren(); said.replaceChildren(problem(error.message)); }
  };
  form.addEventListener("submit", (event) => { event.preventDefault(); begin("begin"); });
  page.onLeave(() => desk?.stop());
  if (page.query.protocol) await begin("begin");
  else place.replaceChildren(h("div", { class: "panel" }, empty("No network yet.", "Choose a protocol and a size, and begin. The steps are yours: publish an event, let time pass, take nodes away.")));
}

class Desk {
  constructor(page, place, bar, said, choices) {
    Object.assign(this, { page, place, said, choices, kind: page.query.map ?? "", selected: null, playing: 0, waiting: 0, done: Promise.resolve() });
    this.map = h("div", {}), this.tiles = h("div", { class: "tiles roomy" }), this.side = h("div", {}), this.chosen = h("div", { class: "row", "aria-live": "polite" });
    this.kinds = h("select", { id: "kind" });
    this.kinds.addEventListener("change", () => { this.kind = this.kinds.value; page.remember({ ...choices, map: this.kind }); this.draw(this.view); });
    const button = (title, action, content = {}) => h("button", { type: "button", onclick: () => this.act(action, content) }, title);
    this.play = h("button", { type: "button", class: "main", "aria-pressed": "false", onclick: () => this.toggle() }, "Play");
    this.loss = h("input", { id: "loss", type: "range", min: 0, max: 50, step: 5, value: 0 });
    this.loss.addEventListener("change", () => this.act("weather", { loss: Number(this.loss.value) / 100 }));
    this.split = h("button", { type: "button", onclick: () => this.act(this.view.is_split ? "heal" : "split") }, "Split in two");
    bar.replaceChildren(this.play, button("Next message", "next"), button("10 ms", "step", { seconds: 0.01 }), button("1 s", "step", { seconds: 1 }), button("10 s", "step", { seconds: 10 }),
        button("Publish an event", "publish"), button("A node joins", "join"), this.split,
      h("div", {}, h("label", { for: "loss" }, "Messages lost, up to half"), this.loss));
    place.replaceChildren(h("div", { class: "columns" }, h("div", { class: "panel" }, h("div", { class: "row" }, h("div", {}, h("label", { for: "kind" }, "Map"), this.kinds), savers(this.map, `${choices.protocol}-${choices.nodes}-${choices.seed}`)), this.map, this.chosen), h("div", {}, this.tiles, this.side)));
  }

  // One after the other, in the order of the presses; a few may wait.
  act(action, content = {}) {
    if (this.waiting >= WAITING_MAX) return this.done;
    this.waiting += 1;
    this.done = this.done.then(() => this.carryOut(action, content));
    return this.done;
  }

  async carryOut(action, content) {
    try {
      const view = await post("/api/simulate", { action, ...content });
      this.said.replaceChildren();
      if (this.page.isShown()) this.draw(view);
    } catch (error) { this.stop(); if (this.page.isShown()) this.said.replaceChildren(problem(error.message)); }
    finally { this.waiting -= 1; }
  }

  toggle() {
    if (this.playing) return this.stop();
    this.playing = setInterval(() => { if (!this.waiting) this.act("step", { seconds: 0.01 }); }, PLAY_MS);
    this.play.textContent = "Pause";
    this.play.setAttribute("aria-pressed", "true");
  }
  stop() {
    clearInterval(this.playing);
    this.playing = 0;
    this.play.textContent = "Play";
    this.play.setAttribute("aria-pressed", "false");
  }

  draw(view) {
    this.view = view;
    const kinds = kindsOf(view);
    const kind = kinds.includes(this.kind) ? this.kind : kinds[0]; // Trees appear, and go, as a network lives.
    this.kinds.replaceChildren(...kinds.map((each) => h("option", { value: each }, kindTitle(each))));
    this.kinds.value = kind;
    renew(this.map, networkMap(view, (each) => `#node-${each.number}`, { kind, messages: view.messages, onSelect: (each) => { this.selected = each.number; this.draw(view); } }), legend(view, kind));
    this.split.textContent = view.is_split ? "Heal the split" : "Split in two";
    this.tiles.replaceChildren(tile(`${view.now_s.toFixed(3)} s`, "virtual time"), tile(count(view.messages.length), "messages on their way"),
      tile(count(view.events), "events published"), tile(`${count(view.notified)} of ${count(view.expected)}`, "notifications"), tile(count(view.twice), "delivered twice"), tile(bytes(view.bytes), "sent"));
    const sent = Object.entries(view.sent).sort(([, a], [, b]) => b - a).slice(0, 14);
    renew(this.side, ...[
      view.last ? h("div", { class: "panel" }, h("h2", {}, "The last event"), h("p", { class: "code" }, JSON.stringify(view.last.values)),
        h("p", {}, badge(`${view.last.notified} of ${view.last.expected} subscriptions have it`, view.last.notified >= view.last.expected ? "good" : "warn")),
        h("p", { class: "note" }, "On the map: a green ring has it, an orange ring waits for it.")) : null,
      view.is_cut_short ? h("p", { class: "warn" }, "This step was cut short: it took too much of the processor. Step on.") : null,
      h("div", { class: "panel" }, h("h2", {}, "Messages"), sent.length ? table(["Kind", { title: "Sent", class: "num" }], sent.map(([name, times]) => h("tr", {}, h("td", {}, name), h("td", { class: "num" }, count(times)))), "Messages")
        : empty("None yet.", "Let some time pass."),
      h("p", { class: "note" }, `Lost ${count(view.lost)}; ${count(view.missed)} came to nodes that were down. ${count(100 * view.work_left)} % of this network's processor time is left.`))].filter(Boolean));
    this.drawChosen(view);
  }

  drawChosen(view) {
    const one = view.brokers.find((each) => each.number === this.selected);
    const button = (title, action) => h("button", { type: "button", onclick: () => this.act(action, { node: one.number }) }, title);
    renew(this.chosen, ...(one ? [h("span", {}, `Node ${one.number}: ${one.state === "away" ? "down" : one.state}${one.role ? `, ${one.role}` : ""}, ${one.subscriptions} subscriptions`),
      ...(one.state === "away" ? [button("Restart it", "restart")] : [button("Publish here", "publish"), button("Crash it", "crash"), button("Let it leave", "leave")])]
      : [h("span", { class: "note" }, "Select a node to publish at it, or to crash it.")]));
  }
}
