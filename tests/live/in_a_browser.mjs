// What a page in a browser does, run by Node.js: `in_a_browser.mjs GATEWAY CAMERA DESK`, the last two folders of clients.
import { readFileSync } from "node:fs";
import { Gateway, Identity } from "../../src/tidings/net/gateway/web/tidings.mjs";

const [address, camera, desk] = process.argv.slice(2);

async function as(folder) {
  const read = (name) => readFileSync(`${folder}/${name}`, "utf8");
  const me = await Identity.read({ key: read("key.pem"), certificate: read("cert.pem"), tokens: [read("right-1.token")] });
  return new Gateway(`https://${address}`, me);
}

const [publisher, subscriber] = [await as(camera), await as(desk)];
const events = [["AB", 31], ["ZZ", 1], ["CD", 32]].map(([plate, speed], number) => ({
  type: "Numberplate", source: "page", id: String(number), data: { plate, speed: speed + 0.0 },
}));

async function hear(count, options) {
  const heard = [];
  for await (const { event, position } of subscriber.subscribe("Numberplate", { where: "speed > 20", durable: "d", ...options })) {
    heard.push({ data: event.data, position });
    if (heard.length === count) return heard;
  }
}

const heard = await hear(2, { ready: () => publisher.publish(events) });
await subscriber.acknowledge("d", heard[0].position);
const again = await hear(1);
const refused = await subscriber.publish(events).then(() => 0, (error) => error.status);
console.log(JSON.stringify({ heard: heard.map((each) => each.data), again: again.map((each) => each.data), refused }));
process.exit(0);
