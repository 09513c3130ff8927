// Tidings for a browser, or any JavaScript with fetch and WebCrypto's Ed25519: publish to a broker's gateway, hear from it.
//
//   const me = await Identity.read({ key, certificate, tokens });      // the texts of key.pem, cert.pem and *.token
//   const gateway = new Gateway("https://broker.example:8443", me);
//   await gateway.publish({ type: "Numberplate", source: "cam-7", id: "1", data: { plate: "AB12CDE" } });
//   for await (const { event } of gateway.subscribe("Numberplate", { where: "speed > 20" })) console.log(event.data);
//
// The key stays here. Each request carries a proof, signed with it, that the asker holds it (DPoP, RFC 9449).

const text = new TextEncoder();

function base64url(bytes) {
  return btoa(String.fromCharCode(...new Uint8Array(bytes))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function bytesOf(pem) {
  return Uint8Array.from(atob(base64Of(pem)), (c) => c.charCodeAt(0));
}

function base64Of(pem) {
  const found = /-----BEGIN [^-]+-----([^-]+)-----END/.exec(pem);
  if (!found) throw new TypeError("expected a PEM file, as `tidings init` writes key.pem and cert.pem");
  return found[1].replace(/\s/g, "");
}

/** Who asks: a key that is used and never sent, its certificate, and the rights it holds. */
export class Identity {
  constructor(key, jwk, certificate, tokens) {
    Object.assign(this, { key, jwk, certificate, tokens });
  }

  static async read({ key, certificate, tokens }) {
    const readable = await crypto.subtle.importKey("pkcs8", bytesOf(key), "Ed25519", true, ["sign"]);
    const { kty, crv, x } = await crypto.subtle.exportKey("jwk", readable);
    const kept = await crypto.subtle.importKey("pkcs8", bytesOf(key), "Ed25519", false, ["sign"]);
    return new Identity(kept, { kty, crv, x }, base64Of(certificate), tokens.map((token) => token.trim()));
  }

  /** A proof for one request, to be used once and soon. */
  async proof(method, url, tokens) {
    const { origin, pathname } = new URL(url);
    const header = { typ: "dpop+jwt", alg: "EdDSA", jwk: this.jwk, x5c: [this.certificate] };
    const claims = {
      jti: crypto.randomUUID(),
      htm: method,
      htu: origin + pathname,
      iat: Math.floor(Date.now() / 1000),
      ath: base64url(await crypto.subtle.digest("SHA-256", text.encode(tokens))),
    };
    const said = [header, claims].map((part) => base64url(text.encode(JSON.stringify(part)))).join(".");
    return `${said}.${base64url(await crypto.subtle.sign("Ed25519", this.key, text.encode(said)))}`;
  }
}

/** What the gateway refuses: its `status`, and why. */
export class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

/** A broker's gateway, as one identity sees it. */
export class Gateway {
  constructor(url, identity) {
    this.url = url.replace(/\/$/, "");
    this.identity = identity;
  }

  /** Publish one CloudEvent, or several; the ids, once they are on the broker's disk. */
  async publish(events) {
    const all = [events].flat().map((event) => ({ specversion: "1.0", ...event }));
    const headers = { "Content-Type": "application/cloudevents-batch+json" };
    const answer = await this.#ask("POST", "/events", { headers, body: JSON.stringify(all) });
    return (await answer.json()).ids;
  }

  /**
   * The events of a type for which the condition is TRUE, each with its position in a durable subscription.
   * `durable` names one that waits while nobody listens; `after` is the last position dealt with, in it.
   * `ready` is called when the subscription is in place, `missed` with how many events were lost because they were not
   * taken in time; `signal` ends it. Throws Refused when the right to it ends.
   */
  async *subscribe(type, { where = "TRUE", durable = "", after = 0, ready = () => {}, missed = () => {}, signal } = {}) {
    const query = new URLSearchParams({ type, where, ...(durable && { durable }) });
    const headers = after ? { "Last-Event-ID": String(after) } : {};
    const answer = await this.#ask("GET", `/events?${query}`, { headers, signal });
    ready();
    let rest = "";
    for await (const chunk of chunksOf(answer.body.pipeThrough(new TextDecoderStream()))) {
      const parts = (rest + chunk).split("\n\n");
      rest = parts.pop();
      for (const part of parts) {
        const fields = Object.fromEntries(part.split("\n").map((line) => line.split(/: (.*)/s, 2)));
        if (!fields.data) continue;
        const said = JSON.parse(fields.data);
        if (fields.event === "refused") throw new Refused(403, said.why);
        if (fields.event === "missed") missed(said);
        else yield { event: said, position: Number(fields.id ?? 0) };
      }
    }
  }

  /** Everything up to this position of a durable subscription is done with and never comes again. */
  async acknowledge(durable, position) {
    const answer = await this.#ask("POST", `/acknowledge?${new URLSearchParams({ durable, position })}`, {});
    return (await answer.json()).acknowledged;
  }

  async #ask(method, path, { headers = {}, ...options }) {
    const tokens = this.identity.tokens.join(", ");
    const proof = await this.identity.proof(method, this.url + path, tokens);
    const all = { ...headers, DPoP: proof, ...(tokens && { Authorization: `Bearer ${tokens}` }) };
    const answer = await fetch(this.url + path, { method, headers: all, ...options });
    if (!answer.ok) throw new Refused(answer.status, (await answer.json()).why);
    return answer;
  }
}

// Not every browser iterates over a stream by itself.
async function* chunksOf(stream) {
  const reader = stream.getReader();
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) yield next.value;
  } finally {
    await reader.cancel().catch(() => {});
  }
}
