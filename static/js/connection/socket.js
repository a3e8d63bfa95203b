/**
 * The connection: connect, notice when it is dead, connect again when `Retries` says. It knows no frames but its
 * own (`ping`, `pong`, `client.state`, `connection.*`) and holds nothing back: what must survive a
 * reconnect is kept by the outbox, and `onopen` is where it is sent again.
 *
 * Browsers hide protocol pings, and a half-open socket stays OPEN after sleep: hence our own heartbeat.
 */

import { SUBPROTOCOL, closePolicy } from "./protocol.js";
import { Retries } from "./retries.js";

const PING_INTERVAL_MS = 25_000;
const PONG_TIMEOUT_MS = 10_000;

/** @typedef {"connecting" | "open" | "waiting" | "stopped" | "login"} SocketState */

export class Socket {
  /** @type {SocketState} */
  state = "waiting";
  /** Why it stays closed, in words for the user. */
  stoppedText = "";
  #websocket = null;
  #retries;
  #notBefore = 0; // the server asked for that
  #draining = null;
  #pingMs = PING_INTERVAL_MS;
  #pongMs = PONG_TIMEOUT_MS;
  #timers = { retry: 0, limit: 0, ping: 0, pong: 0 };
  #parts;

  /**
   * @param {object} parts
   * @param {() => WebSocket} parts.connect
   * @param {() => void} parts.onopen
   * @param {(frame: object) => void} parts.onframe
   * @param {(state: SocketState) => void} parts.onstate
   * @param {() => void} [parts.onevicted] an admin has closed what `session.evicted` named
   * @param {() => boolean} [parts.visible]
   * @param {() => number} [parts.now] @param {() => number} [parts.random]
   */
  constructor({ visible = () => true, now = Date.now, random = Math.random, ...parts }) {
    this.#parts = { visible, now, ...parts };
    this.#retries = new Retries(random);
  }

  /** The way a page opens it: same origin, cookie, `chat.v1`. */
  static to(path) {
    return () => new WebSocket(new URL(path, location.href.replace(/^http/, "ws")), SUBPROTOCOL);
  }

  open() {
    this.#drop();
    this.#become("connecting");
    const limitMs = this.#retries.began(this.#parts.now());
    this.#timers.limit = setTimeout(() => this.#closed(1006, "no answer"), limitMs);
    const websocket = this.#parts.connect();
    this.#websocket = websocket;
    websocket.onopen = () => this.#opened();
    websocket.onmessage = (event) => this.#received(JSON.parse(event.data));
    websocket.onclose = (event) => this.#closed(event.code, event.reason);
  }

  /** Leave for good, without a word. */
  close() {
    this.#drop();
    this.#become("stopped");
  }

  /** Send a frame if there is a connection; otherwise it is the outbox's to keep. */
  send(frame) {
    if (this.state === "open") this.#websocket.send(JSON.stringify(frame));
  }

  /** The page became visible or hidden: say so, and find out whether the connection outlived a sleep. */
  visibilityChanged() {
    this.send({ type: "client.state", visible: this.#parts.visible() });
    if (this.#parts.visible()) this.wake();
  }

  /** Something suggests that now is a good moment: ask for a sign of life, or connect at once. */
  wake() {
    const now = this.#parts.now();
    if (this.state === "open") this.#ping();
    else if (this.state === "connecting" && this.#retries.isSlow(now)) this.open();
    else this.reachable();
  }

  /** The server has answered something else: do not wait any longer. */
  reachable() {
    if (this.state === "waiting" && this.#parts.now() >= this.#notBefore) this.open();
  }

  #opened() {
    clearTimeout(this.#timers.limit);
    this.#retries.opened(this.#parts.now());
    this.#become("open");
    this.send({ type: "client.state", visible: this.#parts.visible() });
    this.#schedulePing();
    this.#parts.onopen();
  }

  #received(frame) {
    if (frame.type === "pong") {
      clearTimeout(this.#timers.pong);
      this.#timers.pong = 0;
      return;
    }
    if (frame.type === "connection.ready") this.#takeHeartbeat(frame.heartbeat);
    if (frame.type === "connection.draining") {
      this.#draining = this.#parts.now() + (frame.reconnect_after_ms ?? 0);
    }
    this.#parts.onframe(frame);
  }

  #takeHeartbeat({ interval_ms = PING_INTERVAL_MS, timeout_ms = PONG_TIMEOUT_MS } = {}) {
    this.#pingMs = interval_ms;
    this.#pongMs = timeout_ms;
    this.#schedulePing();
  }

  #schedulePing() {
    clearInterval(this.#timers.ping);
    this.#timers.ping = setInterval(() => this.#ping(), this.#pingMs);
  }

  #ping() {
    if (this.#timers.pong) return; // one question at a time; the first one's deadline stands
    this.send({ type: "ping", t: this.#parts.now() });
    this.#timers.pong = setTimeout(() => this.#closed(1006, "no pong"), this.#pongMs);
  }

  #closed(code, reason) {
    this.#drop();
    this.#retries.closed(this.#parts.now());
    const policy = closePolicy(code, reason);
    if (policy.action === "login") return this.#become("login");
    if (policy.action === "stop") return this.#stop(policy.text);
    if (policy.isEviction) this.#parts.onevicted?.();
    if (this.#retries.numPutOff >= (policy.maxAttempts ?? Infinity)) {
      return this.#stop("The server keeps failing. Wait a moment, then reconnect.");
    }
    this.#become("waiting");
    this.#timers.retry = setTimeout(() => this.open(), this.#delay(policy));
  }

  #delay({ afterMs = 0, isLoss = false }) {
    const now = this.#parts.now();
    const draining = this.#draining;
    this.#draining = null;
    if (draining !== null) this.#notBefore = draining;
    else this.#notBefore = now + this.#retries.asked(afterMs);
    const asked = Math.max(0, this.#notBefore - now);
    return draining !== null ? asked : Math.max(asked, this.#retries.delay(now, isLoss));
  }

  #stop(text) {
    this.stoppedText = text;
    this.#become("stopped");
  }

  /** Let go of a socket without waiting for its close, which a half-open one never reports. */
  #drop() {
    for (const name of Object.keys(this.#timers)) {
      clearTimeout(this.#timers[name]);
      this.#timers[name] = 0;
    }
    const websocket = this.#websocket;
    this.#websocket = null;
    if (!websocket) return;
    websocket.onopen = websocket.onmessage = websocket.onclose = null;
    websocket.close();
  }

  #become(state) {
    this.state = state;
    this.#parts.onstate(state);
  }
}
