/** Something that the console reads from the server again and again, and of when it is. */

import { signal } from "@preact/signals";

import { Refused } from "./api.js";

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

  isDue(now) {
    return now - this.#triedAt >= this.everyMs;
  }

  /** Whether what is shown is not of now. */
  isStale(now) {
    return this.at.value !== null && (this.error.value !== null || now - this.at.value > this.everyMs + SLACK_MS);
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
    this.#triedAt = at;
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
