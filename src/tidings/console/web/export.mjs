// A drawing as a file: SVG with its colours written into it, or PNG at twice the size. Nothing leaves the browser.

import { h } from "/dom.mjs";

const STYLES = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-dasharray", "stroke-linejoin", "opacity", "paint-order", "font-family", "font-size"];

// The page's style sheet is not in the file, so what it says is.
function standalone(svg) {
  const copy = svg.cloneNode(true), from = [svg, ...svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((each, at) => {
    const style = getComputedStyle(each);
    for (const name of STYLES) to[at].setAttribute(name, style.getPropertyValue(name));
    for (const name of ["class", "href", "tabindex"]) to[at].removeAttribute(name);
  });
  const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  copy.setAttribute("width", width);
  copy.setAttribute("height", height);
  const paper = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  for (const [name, value] of Object.entries({ width: "100%", height: "100%", fill: getComputedStyle(svg.closest(".panel") ?? document.body).backgroundColor })) paper.setAttribute(name, value);
  copy.prepend(paper);
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function save(blob, name) {
  const url = URL.createObjectURL(blob), link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function png({ text, width, height }) {
  const url = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" })), image = new Image();
  try {
    image.src = url;
    await image.decode();
    const canvas = h("canvas", { width: 2 * width, height: 2 * height });
    canvas.getContext("2d").drawImage(image, 0, 0, 2 * width, 2 * height);
    return await new Promise((done) => canvas.toBlob(done, "image/png"));
  } finally { URL.revokeObjectURL(url); }
}

// Buttons that save the drawing inside an element, as it is when they are pressed.
export function savers(place, name) {
  const drawing = () => place.querySelector("svg");
  return [["SVG", async (made) => new Blob([made.text], { type: "image/svg+xml" })], ["PNG", png]].map(([kind, make]) =>
    h("button", { type: "button", class: "quiet", onclick: async () => { if (drawing()) save(await make(standalone(drawing())), `${name}.${kind.toLowerCase()}`); } }, `Save ${kind}`));
}
