// Maps of brokers, one for each kind of overlay:
//
//   ring     the identifiers to scale, as an arc for each broker: the range that is nearest to it (IRBR, Hermes)
//   zones    the information space, with the zones of each broker (Spanhop)
//   core     the core in the middle, its followers around it (immune)
//   tree     an attribute's tree (CBDLO) or an event type's rendezvous tree (Hermes), from the root down
//   circle   by organisation, for all others
//
// A layout gives each broker a spot and draws what lies below the links; links, brokers and messages are the same on all.

import { bytes, count, duration, h, s } from "/dom.mjs";

const LABELS_MAX = 60, LABEL_MAX = 28, DENSE = 60, NARROW_PX = 640;
const KINDS = { irbr: "ring", spanhop: "zones", immune: "core" };
const RINGS = ["irbr", "hermes"];

export const organisations = (brokers) => [...new Set(brokers.map((each) => each.domain))].sort();
export const colour = (orgs, domain) => `org${Math.max(0, orgs.indexOf(domain)) % 8}`;

const treeName = (tree) => (tree.attribute ? `${tree.type}: ${tree.attribute}` : tree.type);
// The trees that a map can show, by name; the core of an immune network has none.
export const treesOf = (brokers) => [...new Set(brokers.flatMap((each) => each.trees ?? []).map(treeName))].filter(Boolean).sort();

// The kinds of map that there are for a network, the usual one first.
export function kindsOf({ brokers, overlay }) {
  const trees = treesOf(brokers).map((name) => `tree ${name}`);
  const usual = KINDS[overlay] ?? (trees.length ? trees[0] : RINGS.includes(overlay) ? "ring" : "circle");
  const fits = usual !== "zones" || brokers.some((each) => each.zones?.length);
  return [...new Set([fits ? usual : "circle", ...trees, ...(RINGS.includes(overlay) ? ["ring"] : []), "circle"])];
}
export const kindTitle = (kind) => ({ ring: "ring of identifiers", zones: "zones of the space", core: "core and followers", circle: "by organisation" })[kind] ?? kind.replace(/^tree /, "tree of ");

// `path` holds the links of an event's route, as "id id" in the order of the ids; `messages` are drawn on their way.
export function networkMap(net, hrefOf, { path = new Set(), kind = kindsOf(net)[0], messages = [], onSelect = null } = {}) {
  const { brokers, links } = net, orgs = organisations(brokers), narrow = innerWidth < NARROW_PX;
  const frame = { W: narrow ? 400 : 760, H: narrow ? 420 : 520, narrow, orgs, many: brokers.length > LABELS_MAX };
  frame.dot = frame.many ? Math.max(3.5, 560 / brokers.length) : narrow ? 10 : brokers.length > 30 ? 9 : 13;
  const layout = (LAYOUTS[kind.split(" ")[0]] ?? circle)(brokers, frame, kind);
  const { spot, bend = 0, edges = null } = layout;
  const shownLinks = links.filter((each) => spot.has(each.a) && spot.has(each.b)
    && (!edges || !each.up || isBehind(each) || path.has(`${each.a} ${each.b}`)));
  const lines = shownLinks.map((each) => link(each, route(spot.get(each.a), spot.get(each.b), bend, frame), path, frame));
  const branches = (edges ?? []).map(([a, b]) => s("path", { class: "branch", d: curve(route(spot.get(a), spot.get(b), 0, frame)) }));
  const moving = messages.filter((each) => spot.has(each.from) && spot.has(each.to)).map((each) => message(each, route(spot.get(each.from), spot.get(each.to), bend, frame)));
  const nodes = brokers.filter((each) => spot.has(each.id)).map((each) => node(each, spot.get(each.id), layout, frame, hrefOf, onSelect));
  return s("svg", { class: shownLinks.length > DENSE ? "map dense" : "map", viewBox: `0 0 ${frame.W} ${frame.H}`, role: "group",
    "aria-label": `Map of ${brokers.length} brokers of ${orgs.length} organisations: ${kindTitle(kind)}` }, layout.below ?? [], lines, branches, nodes, moving);
}

// ── What the drawing means, below it ──

const CAPTIONS = {
  ring: "An arc is the range of identifiers that is nearest to a broker; its tick is the broker's own identifier.",
  zones: "A rectangle is the part of the space of events that a broker looks after.",
  core: "Brokers in the middle are the core; each of the others follows the one that it is joined to.",
  tree: "From the root, at the top, down to the brokers that want such events.",
  circle: "Brokers in the order of their organisations.",
};
const dot = (kind) => s("svg", { width: 14, height: 14, viewBox: "0 0 14 14", "aria-hidden": "true" }, s("circle", { class: kind, cx: 7, cy: 7, r: 6 }));
const stroke = (kind) => s("svg", { width: 24, height: 8, viewBox: "0 0 24 8", "aria-hidden": "true" }, s("path", { class: `link ${kind}`, d: "M0 4H24" }));

export function legend({ brokers, messages }, kind) {
  const orgs = organisations(brokers), item = (mark, text) => h("span", {}, mark, text);
  return h("div", {}, h("p", { class: "note" }, CAPTIONS[kind.split(" ")[0]] ?? ""), h("div", { class: "legend" },
    messages ? [item(dot("message event"), "an event on its way"), item(dot("message"), "another message")]
      : [orgs.slice(0, 8).map((each) => item(dot(colour(orgs, each)), each)), orgs.length > 8 ? item("", `and ${orgs.length - 8} more`) : null, item(dot("halo"), "events in and out"),
        item(stroke("busy"), "bytes or events wait")],
    item(stroke("down"), "not linked")));
}

// ── Layouts ──

const inOrder = (brokers) => [...brokers].sort((a, b) => (a.domain + a.name < b.domain + b.name ? -1 : 1));
const around = (frame, angle, r) => [frame.W / 2 + r * Math.cos(angle), frame.H / 2 + r * Math.sin(angle)];
const radiusOf = ({ narrow, many }) => (narrow ? 118 : many ? 205 : 172);

function onCircle(order, frame, radius = radiusOf(frame)) {
  const angle = (at) => (2 * Math.PI * at) / order.length - Math.PI / 2;
  const spot = new Map(order.map((each, at) => [each.id, order.length === 1 ? [frame.W / 2, frame.H / 2] : around(frame, angle(at), radius)]));
  return { spot, bend: 0.35, labels: "outside" };
}
const circle = (brokers, frame) => onCircle(inOrder(brokers), frame);

// Identifiers are hexadecimal and of one length; a share of the circle is precise enough from their first twelve digits.
const share = (id) => parseInt(id.slice(0, 12), 16) / 16 ** 12;

// Shares of a circle, in order, pushed apart where they are too close to be told apart.
function apart(shares, least) {
  const at = [...shares], n = at.length, gap = Math.min(least, 0.95 / n);
  for (let round = 0; round < 200; round += 1) {
    let moved = 0;
    for (let i = 0; i < n; i += 1) {
      const next = (i + 1) % n, lacks = gap - (at[next] - at[i] + (next ? 0 : 1));
      if (lacks > 1e-6) { at[i] -= lacks / 2; at[next] += lacks / 2; moved += lacks; }
    }
    if (moved < 1e-4) break;
  }
  return at;
}

function ring(brokers, frame) {
  const order = [...brokers].sort((a, b) => (a.id < b.id ? -1 : 1)), n = order.length;
  const found = onCircle(order, frame);
  if (n < 2 || !order.every((each) => /^[0-9a-f]{12}/.test(each.id))) return found;
  const least = n > 12 ? (2 * frame.dot + 6) / (2 * Math.PI * radiusOf(frame)) : 0.075;
  apart(order.map((each) => share(each.id)), least).forEach((x, i) => found.spot.set(order[i].id, around(frame, 2 * Math.PI * x - Math.PI / 2, radiusOf(frame))));
  const outer = radiusOf(frame) + (frame.narrow ? 60 : frame.dot + 16), at = (x) => 2 * Math.PI * x - Math.PI / 2, gap = Math.min(0.002, 0.2 / n);
  const middle = (a, b) => { const from = share(a.id), to = share(b.id) + (share(b.id) < share(a.id) ? 1 : 0); return (from + to) / 2; };
  const below = order.map((each, i) => {
    const own = share(each.id);
    let low = middle(order[(i + n - 1) % n], each), high = middle(each, order[(i + 1) % n]);
    if (low > own) low -= 1;
    if (high < own) high += 1;
    const [x1, y1] = around(frame, at(low + gap), outer), [x2, y2] = around(frame, at(high - gap), outer);
    const [tx, ty] = around(frame, at(own), outer), [hx, hy] = around(frame, at(own), outer - 11);
    const wide = high - low, hex = (x) => Math.floor(((x % 1) + 1) % 1 * 65536).toString(16).padStart(4, "0");
    return s("g", {}, s("path", { class: `range ${colour(frame.orgs, each.domain)}`, d: `M${x1} ${y1} A${outer} ${outer} 0 ${wide > 0.5 ? 1 : 0} 1 ${x2} ${y2}` },
      s("title", {}, `${each.domain}/${each.name} is nearest to the identifiers from ${hex(low)}… to ${hex(high)}…, ${count(100 * wide)} % of the ring`)),
      s("line", { class: "tick", x1: tx, y1: ty, x2: hx, y2: hy }),
      frame.many ? null : s("line", { class: "lead-line", x1: hx, y1: hy, x2: found.spot.get(each.id)[0], y2: found.spot.get(each.id)[1] }));
  });
  return { ...found, below, labels: "outside", out: frame.narrow ? 12 : 34 };
}

function zones(brokers, frame) {
  const side = frame.narrow ? 330 : 440, left = frame.narrow ? 35 : 60, top = frame.narrow ? 20 : 30;
  const box = ([x = [0, 1], y = [0, 1]]) => ({ x: left + side * x[0], y: top + side * (1 - y[1]), w: side * (x[1] - x[0]), h: side * (y[1] - y[0]) });
  const axes = brokers.find((each) => each.axes?.length)?.axes ?? [];
  const spot = new Map(), below = [s("rect", { class: "space", x: left, y: top, width: side, height: side })];
  for (const each of brokers) {
    let best = null;
    for (const zone of each.zones ?? []) {
      const one = box(zone);
      below.push(s("rect", { class: `zone ${colour(frame.orgs, each.domain)}`, x: one.x, y: one.y, width: one.w, height: one.h },
        s("title", {}, `${each.domain}/${each.name}: ${zone.map(([low, high], axis) => `${axes[axis] ?? `axis ${axis + 1}`} from ${count(100 * low)} % to ${count(100 * high)} %`).join(", ")}`)));
      if (!best || one.w * one.h > best.w * best.h) best = one;
    }
    if (best) spot.set(each.id, [best.x + best.w / 2, best.y + best.h / 2]);
  }
  below.push(s("text", { class: "small", x: left + side / 2, y: top + side + 18, "text-anchor": "middle" }, `${axes[0] ?? "first axis"} →`),
    s("text", { class: "small", x: left - 8, y: top + side / 2, "text-anchor": "middle", transform: `rotate(-90 ${left - 8} ${top + side / 2})` }, `${axes[1] ?? "second axis"} →`));
  const rest = inOrder(brokers.filter((each) => !spot.has(each.id)));
  rest.forEach((each, at) => spot.set(each.id, frame.narrow ? [left + ((at + 0.5) * side) / rest.length, frame.H - 34] : [left + side + 90, top + ((at + 0.5) * side) / rest.length]));
  const crowded = brokers.length > 30;
  return { spot, below, labels: crowded ? "none" : "below" };
}

function core(brokers, frame) {
  const inner = inOrder(brokers.filter((each) => each.role === "core")), spot = new Map();
  const r = radiusOf(frame), small = inner.length > 1 ? r * 0.48 : 0;
  inner.forEach((each, at) => spot.set(each.id, around(frame, (2 * Math.PI * at) / inner.length - Math.PI / 2, small)));
  const upper = (each) => inner.findIndex((one) => one.id === each.trees?.[0]?.up?.[0]);
  const outer = brokers.filter((each) => each.role !== "core").sort((a, b) => upper(a) - upper(b) || (a.name < b.name ? -1 : 1));
  // Followers stand in the order of those they follow, so that lines to the core cross little.
  outer.forEach((each, at) => spot.set(each.id, around(frame, (2 * Math.PI * at) / outer.length - Math.PI / 2, r + 40)));
  const below = [s("circle", { class: "space", cx: frame.W / 2, cy: frame.H / 2, r: small + 30 }), s("text", { class: "small", x: frame.W / 2, y: frame.H / 2 + (inner.length > 1 ? 4 : small + 46), "text-anchor": "middle" }, "core")];
  return { spot, below, labels: brokers.length > 30 ? "none" : "below" };
}

// How many names fit beside each other; numbers are short.
const roomFor = (brokers, { narrow }) => (brokers.every((each) => each.name.length <= 3) ? 24 : 8) / (narrow ? 2 : 1);

function tree(brokers, frame, kind) {
  const name = kind.slice(5), place = new Map();
  for (const each of brokers) {
    const mine = (each.trees ?? []).filter((one) => treeName(one) === name);
    if (mine.length) place.set(each.id, { root: mine.some((one) => one.is_root), up: mine.flatMap((one) => one.up), down: mine.flatMap((one) => one.down) });
  }
  const here = new Set(brokers.map((each) => each.id)), children = new Map();
  const add = (from, to) => { if (from !== to && here.has(from) && here.has(to)) { if (!children.has(from)) children.set(from, new Set()); children.get(from).add(to); } };
  for (const [id, one] of place) { for (const up of one.up) add(up, id); for (const down of one.down) add(id, down); }
  const depth = new Map(), edges = [];
  const visit = (start) => { let row = [start]; depth.set(start, 0); while (row.length) { const next = [];
    for (const id of row) for (const child of children.get(id) ?? []) if (!depth.has(child)) { depth.set(child, depth.get(id) + 1); edges.push([id, child]); next.push(child); } row = next; } };
  const all = [...new Set([...place.keys(), ...[...children].flatMap(([from, to]) => [from, ...to])])];
  for (const id of all.filter((each) => place.get(each)?.root)) if (!depth.has(id)) visit(id);
  for (const id of all) if (!depth.has(id)) visit(id); // Whose way to the root nobody reports.
  const rows = [];
  for (const [id, at] of depth) (rows[at] ??= []).push(id);
  const rest = inOrder(brokers.filter((each) => !depth.has(each.id))).map((each) => each.id);
  const levels = rows.length + (rest.length ? 1 : 0), spot = new Map(), high = (frame.H - 40) / Math.max(1, levels);
  [...rows, ...(rest.length ? [rest] : [])].forEach((row, level) => row.forEach((id, at) => spot.set(id, [((at + 0.5) * frame.W) / row.length, 24 + high * (level + 0.35)])));
  const below = rest.length ? [s("text", { class: "small", x: 8, y: frame.H - 6 }, "last row: not in this tree, or not known")] : [];
  return { spot, edges, below, labels: Math.max(...rows.map((row) => row.length), rest.length) > roomFor(brokers, frame) ? "none" : "below" };
}

const LAYOUTS = { ring, zones, core, tree, circle };

// ── What is drawn on each ──

// From one end over a point that is drawn towards the middle to the other.
function route([x1, y1], [x2, y2], bend, { W, H }) {
  const mx = (x1 + x2) / 2, my = (y1 + y2) / 2;
  return [x1, y1, mx + (W / 2 - mx) * bend, my + (H / 2 - my) * bend, x2, y2];
}
const curve = ([x1, y1, mx, my, x2, y2]) => `M${x1.toFixed(1)} ${y1.toFixed(1)} Q${mx.toFixed(1)} ${my.toFixed(1)} ${x2.toFixed(1)} ${y2.toFixed(1)}`;
const along = ([x1, y1, mx, my, x2, y2], t) => [(1 - t) ** 2 * x1 + 2 * t * (1 - t) * mx + t * t * x2, (1 - t) ** 2 * y1 + 2 * t * (1 - t) * my + t * t * y2];

// Acknowledgements come some moments after the events: a few that are under way are no queue.
const isBehind = (each) => each.queued > 0 || (each.owed > 0 && each.behind !== false);

function link(each, way, path, { narrow }) {
  const busy = isBehind(each);
  const kind = path.has(`${each.a} ${each.b}`) ? "path" : each.up ? (busy ? "busy" : "") : "down";
  const load = [each.owed ? `${count(each.owed)} ${busy ? "unacknowledged" : "under way"}` : "", each.queued ? `${bytes(each.queued)} queued` : "", each.silent_s >= 3 ? `silent for ${duration(each.silent_s)}` : ""].filter(Boolean).join(", ");
  const [x, y] = along(way, 0.5);
  return s("g", {}, s("path", { class: `link ${kind}`, d: curve(way) }, s("title", {}, `${each.up ? "linked" : "not linked"}${load ? `, ${load}` : ""}`)),
    load && !narrow ? s("text", { class: "small", x, y, "text-anchor": "middle" }, load) : null);
}

function message(each, way) {
  const [x, y] = along(way, each.way);
  return s("circle", { class: each.has_event ? "message event" : "message", cx: x.toFixed(1), cy: y.toFixed(1), r: each.has_event ? 5 : 3.5 }, s("title", {}, each.name));
}

const short = (text) => (text.length > LABEL_MAX ? `${text.slice(0, LABEL_MAX)}…` : text);

function loadOf(broker) {
  const parts = [broker.role ?? ""];
  if (broker.published_per_s || broker.delivered_per_s) parts.push(`${count(broker.published_per_s)}/s in, ${count(broker.delivered_per_s)}/s out`);
  if (broker.waiting) parts.push(`${count(broker.waiting)} waiting${broker.oldest_s >= 1 ? `, ${duration(broker.oldest_s)} old` : ""}`);
  return parts.filter(Boolean);
}

function node(broker, [x, y], { labels, out: margin = 10 }, frame, hrefOf, onSelect) {
  const { dot, many, orgs, W, H } = frame, label = `${broker.domain}/${broker.name}`;
  const parts = loadOf(broker), load = parts.join(", "), busy = (broker.published_per_s ?? 0) + (broker.delivered_per_s ?? 0);
  const told = broker.state === "up" || broker.state === "linked" ? parts : [broker.state === "away" ? "not linked" : broker.state, ...parts];
  const angle = Math.atan2(y - H / 2, x - W / 2), side = Math.cos(angle);
  const shown = short(broker.domain === "network" ? broker.name : label);
  const outside = labels === "outside" && (!frame.narrow || shown.length <= 3), out = dot + margin;
  const lx = outside ? x + out * side : x, raised = 13 * told.length * Math.max(0, -Math.sin(angle));
  const ly = outside ? y + (out + 8) * Math.sin(angle) - (frame.narrow ? 0 : raised) : y + dot + 14;
  const anchor = !outside || Math.abs(side) < 0.25 ? "middle" : side > 0 ? "start" : "end";
  return s("a", { class: `node ${broker.state} ${broker.mark ?? ""}`, href: hrefOf(broker), "aria-label": `${label}: ${broker.state}${load ? `, ${load}` : ""}`,
    onclick: onSelect ? (event) => { event.preventDefault(); onSelect(broker); } : undefined },
    s("title", {}, `${label}: ${broker.state}, ${broker.address}${load ? `, ${load}` : ""}`),
    busy > 0 ? s("circle", { class: "halo", cx: x, cy: y, r: dot + Math.min(12, 2 + 2 * Math.log2(1 + busy)) }) : null,
    s("circle", { cx: x, cy: y, r: dot, class: broker.role === "core" || broker.role === "coordinator" ? `${colour(orgs, broker.domain)} strong` : colour(orgs, broker.domain) }),
    many || labels === "none" ? null : [s("text", { x: lx, y: ly, "text-anchor": anchor }, shown),
      frame.narrow ? null : told.map((each, line) => s("text", { x: lx, y: ly + 14 + 13 * line, "text-anchor": anchor, class: "small" }, each))]);
}
