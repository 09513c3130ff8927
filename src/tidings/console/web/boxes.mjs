// The boxes of a condition, drawn: the constants cut each axis into cells, and a box is a run of cells on each axis.

import { h, s } from "/dom.mjs";

const CELL = 34, LEFT = 70, TOP = 12, FOOT = 34, CELLS_MAX = 14;

// Where each cut is written: at its line, or in the middle of a cell that is one value, from just below it to just above.
function marks(cuts) {
  const found = [];
  for (let at = 0; at < cuts.length; at += 1) {
    if (cuts[at] === cuts[at + 1]) found.push([`= ${cuts[at]}`, at + 1.5]), at += 1;
    else found.push([cuts[at], at + 1]);
  }
  return found;
}

// The first two axes that boxes are bounded on, as a plane; one axis is a line of cells.
export function drawn({ axes, boxes }) {
  const shown = axes.filter((each) => each.cuts.length < CELLS_MAX).slice(0, 2);
  if (!shown.length || !boxes.length) return null;
  const [x, y = null] = shown, wide = (x.cuts.length + 1) * CELL, tall = (y ? y.cuts.length + 1 : 1) * CELL;
  const runs = (box, axis) => (axis ? box.cells[axis.name] ?? [[0, axis.cuts.length + 1]] : [[0, 1]]);
  const rects = boxes.flatMap((box) => runs(box, x).flatMap(([x1, x2]) => runs(box, y).map(([y1, y2]) =>
    s("rect", { class: box.residuals.length ? "box partly" : "box", x: LEFT + x1 * CELL + 1, y: TOP + tall - y2 * CELL + 1, width: (x2 - x1) * CELL - 2, height: (y2 - y1) * CELL - 2 }))));
  const grid = [...Array(x.cuts.length + 2).keys()].map((at) => s("line", { class: "grid", x1: LEFT + at * CELL, x2: LEFT + at * CELL, y1: TOP, y2: TOP + tall }))
    .concat([...Array((y ? y.cuts.length : 0) + 2).keys()].map((at) => s("line", { class: "grid", x1: LEFT, x2: LEFT + wide, y1: TOP + at * CELL, y2: TOP + at * CELL })));
  // Long labels take turns in two rows.
  const below = marks(x.cuts).map(([cut, at], n) => s("text", { class: "small", x: LEFT + at * CELL, y: TOP + tall + 13 + (n % 2) * 12, "text-anchor": "middle" }, cut));
  const beside = (y ? marks(y.cuts) : []).map(([cut, at]) => s("text", { class: "small", x: LEFT - 6, y: TOP + tall - at * CELL + 4, "text-anchor": "end" }, cut));
  const width = LEFT + wide + 90, height = TOP + tall + FOOT;
  return h("figure", { class: "boxes" }, h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Boxes" },
    s("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `${boxes.length} boxes over ${shown.map((each) => each.name).join(" and ")}` }, rects, grid, below, beside,
      s("text", { class: "small", x: LEFT + wide + 8, y: TOP + tall + 13 }, `${x.name} →`), y ? s("text", { class: "small", x: LEFT - 6, y: TOP + 4, "text-anchor": "end" }, `${y.name} ↑`) : null)),
    axes.length > shown.length ? h("figcaption", { class: "soft" }, `Of ${axes.length} axes; the others are in the list.`) : null);
}
