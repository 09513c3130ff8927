// A small line chart over the last minutes.

import { bytes, count, duration, h, s } from "/dom.mjs";

const HEIGHT = 90, NARROW_PX = 640;

// `points` are {ago_s, value}, oldest first.
export function chart(title, points, unit) {
  const WIDTH = innerWidth < NARROW_PX ? 330 : 560;
  const shown = points.filter((each) => Number.isFinite(each.value));
  const last = shown.at(-1)?.value ?? 0, say = (value) => (unit === "B" ? bytes(value) : `${count(value)}${unit}`);
  const head = h("div", { class: "row" }, h("span", { class: "soft" }, title), h("b", {}, say(last)));
  if (shown.length < 2) return h("div", { class: "panel" }, head, h("p", { class: "note" }, "A line appears after a few seconds."));
  const span = Math.max(1, shown[0].ago_s), most = Math.max(...shown.map((each) => each.value)), top = Math.max(1, most) * 1.3;
  const at = (each) => [WIDTH - (each.ago_s / span) * WIDTH, HEIGHT - (each.value / top) * HEIGHT];
  const line = shown.map((each, i) => `${i ? "L" : "M"}${at(each).map((v) => v.toFixed(1)).join(" ")}`).join("");
  return h("div", { class: "panel" }, head,
    s("svg", { viewBox: `0 -2 ${WIDTH} ${HEIGHT + 20}`, role: "img", "aria-label": `${title}: now ${say(last)}, at most ${say(most)} in the last ${duration(span)}` },
      s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }),
      s("path", { class: "area", d: `${line}L${at(shown.at(-1))[0]} ${HEIGHT}L${at(shown[0])[0]} ${HEIGHT}Z` }),
      s("path", { class: "curve", d: line }),
      most > 0 ? [s("line", { class: "grid", x1: 0, x2: WIDTH, y1: HEIGHT - (most / top) * HEIGHT, y2: HEIGHT - (most / top) * HEIGHT }), s("text", { class: "small", x: 0, y: HEIGHT - (most / top) * HEIGHT - 4 }, `at most ${say(most)}`)] : null,
      s("text", { class: "small", x: 0, y: HEIGHT + 14 }, `${duration(Math.round(span))} ago`),
      s("text", { class: "small", x: WIDTH, y: HEIGHT + 14, "text-anchor": "end" }, "now")));
}

export function rates(points, name) {
  return points.slice(1).map((each, i) => ({
    ago_s: each.ago_s, value: Math.max(0, (each[name] - points[i][name]) / Math.max(0.1, points[i].ago_s - each.ago_s)) }));
}
export const levels = (points, name) => points.map((each) => ({ ago_s: each.ago_s, value: each[name] }));
