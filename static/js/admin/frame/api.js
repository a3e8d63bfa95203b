/**
 * The admin's requests, each with a time limit. The token travels as a header only: a URL would be kept in histories
 * and logs.
 */

export const READ_MS = 4000;
const LATE_MS = 250; // what a timer is late, this page was held up
const DEED_MS = 15_000; // the server itself waits some seconds for an answer's end

/** No answer came in time, or none that could be read. */
export class Silent extends Error {}

export class Refused extends Error {
  /** @param {number} status @param {{code?: string, message?: string, param?: string}} error */
  constructor(status, error = {}) {
    super(error.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error.code ?? "";
    this.param = error.param ?? "";
  }

  /** Whether the same question would be refused again. */
  get isFinal() {
    return this.status >= 400 && this.status < 500 && ![401, 408, 425, 429].includes(this.status);
  }
}

/** Paths are those below `/v1/admin`. Each method raises `Refused` or `Silent`. */
export class AdminApi {
  /** @param {string} token of an admin */
  constructor(token) {
    this.token = token;
  }

  /** @param {object} [query] what is null or empty is left out */
  get(path, query = {}, { limitMs = READ_MS } = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
    const search = new URLSearchParams(given);
    return this.#ask("GET", given.length ? `${path}?${search}` : path, limitMs);
  }

  post(path, body = {}) {
    return this.#ask("POST", path, DEED_MS, body);
  }

  /** What a repeat with the same key does only once. */
  postOnce(path, body, key) {
    return this.#ask("POST", path, DEED_MS, body, { "Idempotency-Key": key });
  }

  put(path, body = {}) {
    return this.#ask("PUT", path, DEED_MS, body);
  }

  patch(path, body = {}) {
    return this.#ask("PATCH", path, DEED_MS, body);
  }

  delete(path) {
    return this.#ask("DELETE", path, DEED_MS);
  }

  /** A websocket of this admin: browsers can send a token only among the subprotocols. */
  connect() {
    const bytes = new TextEncoder().encode(this.token);
    const encoded = btoa(String.fromCharCode(...bytes))
      .replaceAll("+", "-")
      .replaceAll("/", "_")
      .replace(/=+$/, "");
    const url = new URL("/v1/ws", location.href.replace(/^http/, "ws"));
    return new WebSocket(url, ["chat.v1", `bearer.${encoded}`]);
  }

  async #ask(method, path, limitMs, body, more) {
    const patience = new AbortController();
    const abort = () => patience.abort();
    const due = performance.now() + limitMs;
    // Whoever was held up hears of the time before the answer, which may be there.
    const end = () => (performance.now() - due > LATE_MS ? (timer = setTimeout(abort, LATE_MS)) : abort());
    let timer = setTimeout(end, limitMs);
    try {
      return await this.#exchange(method, path, body, patience.signal, more);
    } catch (error) {
      throw error instanceof Refused ? error : new Silent("the server does not answer");
    } finally {
      clearTimeout(timer);
    }
  }

  async #exchange(method, path, body, signal, more) {
    const headers = { Accept: "application/json", Authorization: `Bearer ${this.token}`, ...more };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method, headers, body: body && JSON.stringify(body), signal, credentials: "omit" };
    const response = await fetch(`/v1/admin${path}`, options);
    if (response.status === 204) return {};
    if (response.ok) return response.json();
    const { error } = await response.json().catch(() => ({})); // a proxy's refusal may be a page
    throw new Refused(response.status, error);
  }
}
