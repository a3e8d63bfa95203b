/** The admin's requests. The token travels as a header only: a URL would be kept in histories and logs. */

export class Refused extends Error {
  /** @param {number} status @param {{code?: string, message?: string}} error */
  constructor(status, error = {}) {
    super(error.message ?? `the server answered ${status}`);
    this.status = status;
    this.code = error.code ?? "";
  }
}

export class AdminApi {
  /** @param {string} token of an admin */
  constructor(token) {
    this.token = token;
  }

  get(path, query = {}) {
    const given = Object.entries(query).filter(([, value]) => value !== null && value !== "");
    const search = new URLSearchParams(given);
    return this.#ask("GET", given.length ? `${path}?${search}` : path);
  }

  post(path, body = {}) {
    return this.#ask("POST", path, JSON.stringify(body));
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

  async #ask(method, path, body) {
    const headers = { Accept: "application/json", Authorization: `Bearer ${this.token}` };
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const options = { method, headers, body, credentials: "omit" };
    const response = await fetch(`/v1/admin${path}`, options);
    if (response.status === 204) return {};
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Refused(response.status, answer.error);
    return answer;
  }
}
