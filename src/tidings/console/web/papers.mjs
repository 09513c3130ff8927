// Papers: what was claimed, what was measured, and the verdict.

import { badge, count, empty, get, h, table, tile } from "/dom.mjs";

const KINDS = { holds: "good", "goal met": "good", differs: "warn", "goal missed": "bad", fails: "bad" };

export async function show(page) {
  page.root.append(h("h1", {}, "Papers"), h("p", { class: "lead" }, "The papers' claims, what the lab measured, and the verdict."));
  const { claims, figures } = await get("/api/papers");
  if (!page.isShown()) return;
  if (!claims.length) return page.root.append(h("div", { class: "panel" }, empty("The lab has not been run here.",
    h("span", {}, h("code", {}, "tidings lab run --quick --out figures"), " runs it; ", h("code", {}, "tidings console --figures DIR"), " shows what it wrote."))));
  const papers = [...new Set(claims.map((each) => each.paper))].sort(), verdicts = [...new Set(claims.map((each) => each.verdict))].sort();
  const paper = choice("paper", "Paper", ["all papers", ...papers], page.query.paper ?? papers[0]), verdict = choice("verdict", "Verdict", ["all verdicts", ...verdicts], page.query.verdict);
  const place = h("div", {});
  const draw = () => {
    page.remember({ paper: paper.value, verdict: verdict.value });
    const shown = claims.filter((each) => [each.paper, "all papers"].includes(paper.value) && [each.verdict, "all verdicts"].includes(verdict.value));
    const drawn = figures.filter((each) => each.startsWith(`/figures/${paper.value}/`));
    place.replaceChildren(h("div", { class: "panel" }, shown.length ? table(["Paper", "Figure", "Claim", "Expected", "Measured", "Verdict"], shown.map(row), "Claims")
      : empty("No claim is like that.", "Choose another paper or verdict.")),
      ...drawn.map((each) => h("figure", { class: "panel" }, h("img", { src: each, alt: `Figure ${each.slice(9)}`, loading: "lazy" }),
        h("figcaption", {}, each.slice(9), " · ", h("a", { href: each, download: true }, "SVG"), " · ", h("a", { href: each.replace(/svg$/, "png"), download: true }, "PNG")))));
  };
  for (const field of [paper, verdict]) field.addEventListener("change", draw);
  page.root.append(h("div", { class: "tiles" }, verdicts.map((each) => tile(count(claims.filter((claim) => claim.verdict === each).length), each))),
    h("div", { class: "panel row" }, h("div", {}, h("label", { for: "paper" }, "Paper"), paper), h("div", {}, h("label", { for: "verdict" }, "Verdict"), verdict)), place);
  draw();
}

function choice(id, label, values, chosen) {
  const select = h("select", { id }, values.map((each) => h("option", { value: each }, each)));
  if (values.includes(chosen)) select.value = chosen;
  return select;
}

const row = (each) => h("tr", {}, h("td", {}, each.paper), h("td", {}, each.figure), h("td", {}, each.claim, h("div", { class: "soft" }, each.why)),
  h("td", {}, each.expected), h("td", {}, each.measured), h("td", {}, badge(each.verdict, KINDS[each.verdict] ?? "soft")));
