// Papers: what was claimed, what was measured, and the verdict, beside the figure that shows it.

import { badge, count, empty, get, h, prose, table, tile } from "/dom.mjs";

const KINDS = { holds: "good", "goal met": "good", better: "good", differs: "warn", "goal missed": "bad", fails: "bad" };
const VERDICTS = Object.keys(KINDS);

export async function show(page) {
  page.root.append(h("h1", {}, "Papers"), h("p", { class: "lead" }, "The papers' claims, what the lab measured, and the verdict. To watch a protocol at work, and to break it, see ", h("a", { href: page.link("simulate") }, "Simulate"), "."));
  const [{ claims, figures }, { protocols }] = await Promise.all([get("/api/papers"), get("/api/simulations")]);
  if (!page.isShown()) return;
  if (!claims.length) return page.root.append(h("div", { class: "panel" }, empty("The lab has not been run here.",
    "`tidings lab run --quick --out figures` runs it; `tidings console --figures DIR` shows what it wrote.")));
  const papers = [...new Set(claims.map((each) => each.paper))].sort(), verdicts = [...new Set(claims.map((each) => each.verdict))].sort((a, b) => VERDICTS.indexOf(a) - VERDICTS.indexOf(b));
  const paper = choice("paper", "all papers", papers, page.query.paper ?? papers[0]), verdict = choice("verdict", "all verdicts", verdicts, page.query.verdict);
  const tiles = h("div", { class: "tiles" }), place = h("div", {});
  const draw = () => {
    page.remember({ paper: paper.value, verdict: verdict.value });
    const ofPaper = claims.filter((each) => [each.paper, "all papers"].includes(paper.value));
    const shown = ofPaper.filter((each) => [each.verdict, "all verdicts"].includes(verdict.value));
    const groups = [...new Set(shown.map((each) => `${each.paper}/${each.figure}`))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
    tiles.replaceChildren(...verdicts.map((each) => [ofPaper.filter((claim) => claim.verdict === each).length, each]).filter(([n]) => n).map(([n, each]) => tile(count(n), each)));
    place.replaceChildren(protocols.includes(paper.value) ? h("p", {}, h("a", { href: page.link("simulate", { protocol: paper.value }) }, `Watch ${paper.value} in a simulated network`)) : "",
      ...groups.map((name) => group(name, shown.filter((each) => `${each.paper}/${each.figure}` === name), figures.find((each) => each === `/figures/${name}.svg`))));
    if (!groups.length) place.append(h("div", { class: "panel" }, empty("No claim is like that.", "Choose another paper or verdict.")));
  };
  for (const field of [paper, verdict]) field.addEventListener("change", draw);
  page.root.append(h("div", { class: "panel row" }, h("div", {}, h("label", { for: "paper" }, "Paper"), paper), h("div", {}, h("label", { for: "verdict" }, "Verdict"), verdict)), tiles, place);
  draw();
}

function choice(id, all, values, chosen) {
  const select = h("select", { id }, [all, ...values].map((each) => h("option", { value: each }, each)));
  if (values.includes(chosen) || chosen === all) select.value = chosen;
  return select;
}

// One figure, and all that is claimed of it.
function group(name, claims, figure) {
  const title = /^\d/.test(claims[0].figure) ? `${claims[0].paper}, figure ${claims[0].figure}` : `${claims[0].paper}: ${claims[0].figure}`;
  const rows = table(["Claim", "Expected", "Measured", "Verdict"], claims.map(row), `Claims of ${name}`);
  const drawn = figure ? h("figure", {}, h("img", { src: figure, alt: `Figure ${name}`, loading: "lazy", width: 640, height: 400 }),
    h("figcaption", {}, h("a", { href: figure, download: true }, "SVG"), " · ", h("a", { href: figure.replace(/svg$/, "png"), download: true }, "PNG"))) : null;
  return h("section", { class: "panel" }, h("h2", {}, title), drawn ? h("div", { class: "columns" }, rows, drawn) : rows);
}

const row = (each) => h("tr", {}, h("td", {}, each.claim, each.why ? h("div", { class: "soft" }, prose(each.why)) : null, each.conditions ? h("details", { class: "soft" }, h("summary", {}, "Measured how"), prose(each.conditions)) : null),
  h("td", {}, each.expected), h("td", {}, each.measured), h("td", {}, badge(each.verdict, KINDS[each.verdict] ?? "soft")));
