// The shell: session, navigation, who the console acts as, the theme. Screens are modules with `show(page)`.

import { empty, get, h, post, problem, Refused, useCsrf, zone } from "/dom.mjs";
import * as events from "/events.mjs";
import * as network from "/network.mjs";
import * as papers from "/papers.mjs";
import * as pipelines from "/pipelines.mjs";
import * as rights from "/rights.mjs";
import * as simulate from "/simulate.mjs";
import * as trace from "/trace.mjs";
import * as why from "/why.mjs";

const SCREENS = { network, events, why, trace, rights, pipelines, papers, simulate };
const TITLES = { network: "Network", events: "Events", why: "Why", trace: "Trace", rights: "Rights", pipelines: "Pipelines", papers: "Papers", simulate: "Simulate" };
const main = document.getElementById("main");
let me = null;
let leave = () => {};
let shown = 0;

// ── Links: #/screen?name=value, so that each view can be shared ──

function place() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { screen: SCREENS[path] ? path : "network", query: Object.fromEntries(new URLSearchParams(query)) };
}
export const linkTo = (screen, query = {}) => `#/${screen}?${new URLSearchParams({ client: current(), ...query })}`;

function current() {
  const wanted = place().query.client ?? stored("client");
  return me.clients.some((each) => each.name === wanted) ? wanted : me.clients[0].name;
}

// ── Session ──

async function begin() {
  const key = /^#login=([\w-]+)/.exec(location.hash)?.[1];
  if (key) {
    history.replaceState(null, "", "/#/network"); // The key does not stay in the address bar or the history.
    await post("/api/session", { key });
  }
  me = await get("/api/me");
  useCsrf(me.csrf);
  comeBack();
  document.getElementById("foot").textContent = `Times are in your zone, ${[...new Set([Intl.DateTimeFormat().resolvedOptions().timeZone, zone()])].join(", ")}. Tidings ${me.version}.`;
  const select = document.getElementById("client"), out = document.getElementById("logout");
  out.hidden = false;
  out.title = me.user ? `Logged in as ${me.user}` : "Logged in with the login key";
  out.addEventListener("click", async () => { await post("/api/logout", {}); location.reload(); });
  select.append(...me.clients.map((each) => h("option", { value: each.name }, each.name + (each.administers ? " (administrator)" : ""))));
  select.addEventListener("change", () => { store("client", select.value); location.hash = `/${place().screen}?${new URLSearchParams({ ...keep(place()), client: select.value })}`; });
  addEventListener("hashchange", render);
  await render();
}

// A login at a provider leaves the page: the link that somebody has followed here is kept meanwhile.
const PLACE = "tidings.place";
function comeBack() {
  const place = sessionStorage.getItem(PLACE);
  sessionStorage.removeItem(PLACE);
  if (place?.startsWith("#/") && location.hash.length < 2) history.replaceState(null, "", `/${place}`);
}

const keep = ({ query }) => Object.fromEntries(Object.entries(query).filter(([name]) => ["type", "where", "event"].includes(name)));

async function render() {
  if (location.hash === "#main") { main.focus(); return; }
  leave();
  leave = () => {};
  note("");
  const turn = ++shown;
  const { screen, query } = place();
  const client = current();
  document.getElementById("client").value = client;
  document.getElementById("nav").replaceChildren(...Object.entries(TITLES).map(([name, title]) =>
    h("a", { href: linkTo(name), "aria-current": name === screen ? "page" : undefined }, title)));
  document.title = `${TITLES[screen]} – Tidings console`;
  const root = h("div", {});
  const page = {
    root, query, client, me, link: linkTo,
    isShown: () => turn === shown,
    onLeave: (work) => { const before = leave; leave = () => { before(); work(); }; },
    remember: (changed) => history.replaceState(null, "", linkTo(screen, { ...place().query, client, ...changed })),
    every: (seconds, work) => repeat(seconds, work, () => turn === shown),
  };
  main.replaceChildren(root);
  try {
    await SCREENS[screen].show(page);
  } catch (error) {
    if (turn === shown) fail(error, root);
  }
}

// Does some work again and again while its screen is shown. What is on the screen stays if it fails once, with a note.
async function repeat(seconds, work, goesOn) {
  while (goesOn()) {
    try {
      await work();
      if (goesOn()) note("");
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (goesOn() && error.status === 401) return fail(error, main);
      if (goesOn()) note(`Not up to date: ${error.message}`);
    }
    await new Promise((done) => setTimeout(done, 1000 * seconds));
  }
}

function note(text) {
  const banner = document.getElementById("banner");
  banner.hidden = !text;
  if (banner.textContent !== text) banner.textContent = text;
}

function fail(error, root) {
  if (error instanceof Refused && [401, 403].includes(error.status) && me === null || error.status === 401) loginPage(root, error);
  else root.append(problem(error.message));
}

async function loginPage(root, error) {
  const ways = await get("/api/logins").catch(() => ({}));
  const byCertificate = async () => {
    try { await post("/api/session", { certificate: true }); location.reload(); } catch (refused) { root.append(problem(refused.message)); }
  };
  root.replaceChildren(h("div", { class: "panel" }, empty("You are not logged in.", h("span", {}, "Open the URL that ", h("code", {}, "tidings console"), " printed in its terminal", ways.oidc || ways.certificate ? ", or log in as a user:" : ".")),
    h("div", { class: "row centred" }, ways.oidc ? h("a", { class: "button", href: "/login/oidc", onclick: () => sessionStorage.setItem(PLACE, location.hash) }, `Log in at ${ways.oidc}`) : null,
      ways.certificate ? h("button", { type: "button", class: "main", onclick: byCertificate }, "Log in with your certificate") : null),
    error.status === 403 ? problem(error.message) : null));
}

// ── Theme ──

const stored = (name) => { try { return localStorage.getItem(`tidings.${name}`); } catch { return null; } };
const store = (name, value) => { try { localStorage.setItem(`tidings.${name}`, value); } catch { /* Private windows have none. */ } };
const THEMES = { system: "◐ system", light: "○ light", dark: "● dark" };

function theme(name) {
  const chosen = name in THEMES ? name : "system";
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  const button = document.getElementById("theme");
  button.textContent = THEMES[chosen];
  button.setAttribute("aria-label", `Theme: ${chosen}`);
  store("theme", chosen);
}
document.getElementById("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  theme(names[(names.indexOf(stored("theme") ?? "system") + 1) % names.length]);
});
theme(stored("theme"));

begin().catch((error) => { main.replaceChildren(); fail(error, main); });
