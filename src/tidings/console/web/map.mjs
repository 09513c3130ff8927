// The map of brokers. On a ring overlay brokers sit in the order of their identifiers, and the coloured arc before
// each is the range of identifiers nearest to it; on others they sit by organisation.

import { bytes, s } from "/dom.mjs";

const RINGS = ["irbr", "hermes"];
const LABELS_MAX = 60, NARROW_PX = 640;

export const organisations = (brokers) => [...new Set(brokers.map((each) => each.domain))].sort();
export const colour = (orgs, domain) => `org${Math.max(0, orgs.indexOf(domain)) % 8}`;

// `path` holds the links of an event's route, as "id id" in the order of the ids.
export function networkMap({ brokers, links, overlay }, hrefOf, path = new Set()) {
  const ring = RINGS.includes(overlay);
  const order = [...brokers].sort(ring ? (a, b) => (a.id < b.id ? -1 : 1)
    : (a, b) => (a.domain + a.name < b.domain + b.name ? -1 : 1));
  const orgs = organisations(brokers), n = order.length, many = n > LABELS_MAX, narrow = innerWidth < NARROW_PX;
  const WIDTH = narrow ? 400 : 760, HEIGHT = narrow ? 400 : 520;
  const radius = narrow ? 118 : many ? 225 : 165, dot = many ? Math.max(3, 900 / n) : 13;
  const edge = radius + (narrow ? 56 : 34);
  const angle = (at) => (2 * Math.PI * at) / n - Math.PI / 2;
  const point = (at, r) => [WIDTH / 2 + r * Math.cos(at), HEIGHT / 2 + r * Math.sin(at)];
  const spot = new Map(order.map((each, at) => [each.id, n === 1 ? [WIDTH / 2, HEIGHT / 2] : point(angle(at), radius)]));

  const arcs = ring && n > 1 && !many ? order.map((each, at) => {
    const [x1, y1] = point(angle(at - 0.47), edge), [x2, y2] = point(angle(at + 0.47), edge);
    return s("path", { class: `range ${colour(orgs, each.domain)}`,
      d: `M${x1} ${y1} A${edge} ${edge} 0 0 1 ${x2} ${y2}` });
  }) : [];
  const lines = links.filter((each) => spot.has(each.a) && spot.has(each.b)).map((each) => {
    const [x1, y1] = spot.get(each.a), [x2, y2] = spot.get(each.b);
    const bend = 0.35, mx = (x1 + x2) / 2 + (WIDTH / 2 - (x1 + x2) / 2) * bend, my = (y1 + y2) / 2 + (HEIGHT / 2 - (y1 + y2) / 2) * bend;
    const kind = path.has(`${each.a} ${each.b}`) ? "path" : each.up ? (each.queued > 0 ? "busy" : "") : "down";
    return s("path", { class: `link ${kind}`, d: `M${x1} ${y1} Q${mx} ${my} ${x2} ${y2}` },
      s("title", {}, each.up ? `linked, ${bytes(each.queued)} queued` : "not linked"));
  });
  const nodes = order.map((each, at) => node(each, spot.get(each.id), angle(at), { orgs, dot, many, below: n === 1 || narrow }, hrefOf));
  const cut = many || narrow ? 0 : 15;
  return s("svg", { class: "map", viewBox: `0 ${cut} ${WIDTH} ${HEIGHT - 2 * cut}`, role: "group",
    "aria-label": `Map of ${n} brokers of ${orgs.length} organisations` }, arcs, lines, nodes);
}

function node(broker, [x, y], angle, { orgs, dot, many, below }, hrefOf) {
  const out = dot + 34, side = below ? 0 : Math.cos(angle);
  const lx = below ? x : x + (out + 10) * Math.cos(angle), ly = below ? y + dot + 15 : y + (out + 14) * Math.sin(angle);
  const anchor = Math.abs(side) < 0.25 ? "middle" : side > 0 ? "start" : "end";
  const label = `${broker.domain}/${broker.name}`;
  return s("a", { class: `node ${broker.state}`, href: hrefOf(broker), "aria-label": `${label}: ${broker.state}` },
    s("title", {}, `${label}: ${broker.state}, ${broker.address}`),
    s("circle", { cx: x, cy: y, r: dot, class: colour(orgs, broker.domain) }),
    many ? null : [s("text", { x: lx, y: ly, "text-anchor": anchor }, label),
      s("text", { x: lx, y: ly + 15, "text-anchor": anchor, class: "small" }, `${broker.id.slice(0, 6)}… ${broker.state}`)]);
}
