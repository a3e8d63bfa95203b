/** What the console reads from the server again and again, of when it is, and in which order it is read. */

import { signal } from "@preact/signals";

import { Refused, Silent } from "./api.js";

export const ROUND_MS = 1000;
export const SLACK_MS = 1400; // beside its interval; what is older than both is not of now

export class Reading {
  /** The last answer; null before there is one. */
  value = signal(null);
  /** When it was asked for, by this browser's clock: what it says is no older. */
  at = signal(null);
  /** Why the last try failed; null when it did not. */
  error = signal(null);
  everyMs;
  #ask;
  #triedAt = -Infinity;
  #version = 0;

  /**
   * @param {(api: import("./api.js").AdminApi) => Promise<any>} ask
   * @param {{everyMs?: number}} [how]
   */
  constructor(ask, { everyMs = 1000 } = {}) {
    this.#ask = ask;
    this.everyMs = everyMs;
  }

  get isDue() {
    return performance.now() - this.#triedAt >= this.everyMs;
  }

  /** Whether what is shown is not of now. */
  isStale(now) {
    const oldestMs = Math.max(this.everyMs, ROUND_MS) + SLACK_MS;
    return this.at.value !== null && (this.error.value !== null || now - this.at.value > oldestMs);
  }

  /** Ask again at the next opportunity. */
  hurry() {
    this.#triedAt = -Infinity;
  }

  /** It is another question now: what is known, or under way, answers the one before. */
  renew() {
    this.#version += 1;
    this.value.value = this.at.value = this.error.value = null;
    this.hurry();
  }

  /** Never raises but for a token that is not taken any more: what failed is in `error`. */
  async read(api) {
    const version = this.#version;
    const at = Date.now();
    this.#triedAt = performance.now(); // a clock that is set does not matter here
    try {
      const value = await this.#ask(api);
      if (version !== this.#version) return;
      this.value.value = value;
      this.at.value = at;
      this.error.value = null;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) throw error;
      if (version === this.#version) this.error.value = error;
    }
  }
}

/** Reads a few readings, in each round those that are due, one after the other. */
export class Lane {
  #readings;
  #onFailure;
  #roundMs;
  #timer = 0;
  #isBusy = false;
  #again = false;

  /**
   * @param {() => Reading[]} readings those of this moment
   * @param {(error: Error) => void} onFailure hears of a token that is not taken any more
   * @param {number} [roundMs] between two rounds
   */
  constructor(readings, onFailure, roundMs = ROUND_MS) {
    this.#readings = readings;
    this.#roundMs = roundMs;
    this.#onFailure = onFailure;
  }

  stop() {
    clearTimeout(this.#timer);
  }

  /** Read what is due now, and from now on in rounds, as long as `mayAsk`. @param {() => object | null} mayAsk the api */
  async go(mayAsk) {
    this.stop();
    this.#again = this.#isBusy;
    if (this.#isBusy || !mayAsk()) return;
    this.#isBusy = true;
    try {
      await this.#round(mayAsk);
    } finally {
      this.#isBusy = false;
    }
    this.stop();
    this.#timer = setTimeout(() => this.go(mayAsk), this.#again ? 0 : this.#roundMs);
  }

  async #round(mayAsk) {
    const done = new Set();
    const api = mayAsk();
    while (api && api === mayAsk()) {
      // Looked for anew each time: another tab may be shown by now.
      const next = this.#readings().find((reading) => !done.has(reading) && reading.isDue);
      if (!next) return;
      done.add(next);
      try {
        await next.read(api);
      } catch (error) {
        return this.#onFailure(error);
      }
      if (next.error.value instanceof Silent) return; // the others would wait as long
    }
  }
}
