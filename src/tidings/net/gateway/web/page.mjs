import { Gateway, Identity } from "./tidings.mjs";

const by = (id) => document.getElementById(id);
let gateway = null;
let listening = null;

function say(line, kind = "") {
  const row = document.createElement("li");
  row.className = kind;
  row.textContent = line;
  by("heard").prepend(row);
}

async function attempt(work) {
  try {
    await work();
  } catch (wrong) {
    if (wrong.name !== "AbortError") say(wrong.status ? `refused (${wrong.status}): ${wrong.message}` : String(wrong), "wrong");
  }
}

async function enter() {
  const [key, certificate] = await Promise.all(["key", "certificate"].map((id) => by(id).files[0].text()));
  const tokens = await Promise.all([...by("tokens").files].map((file) => file.text()));
  gateway = new Gateway(location.origin, await Identity.read({ key, certificate, tokens }));
  by("use").disabled = false;
  say("ready: the key stays in this page");
}

async function listen() {
  listening?.abort();
  listening = new AbortController();
  const options = { where: by("where").value || "TRUE", signal: listening.signal, ready: () => say("subscribed") };
  for await (const { event } of gateway.subscribe(by("type").value, options)) {
    say(`${event.time} ${event.type} ${JSON.stringify(event.data)}`);
  }
}

async function publish() {
  const event = { type: by("type").value, source: "browser", id: crypto.randomUUID(), data: JSON.parse(by("data").value) };
  const [id] = await gateway.publish(event);
  say(`published ${id}`);
}

for (const [id, work] of Object.entries({ enter, listen, publish })) {
  by(id).addEventListener("click", () => attempt(work));
}
by("stop").addEventListener("click", () => listening?.abort());
