/** What the console reads from the server again and again, of when it is, and in which order it is read. */

import { signal } from "@preact/signals";

import { Refused, Silent } from "./api.js";

export const ROUND_MS = 1000;
const OWED_MS = 1400; // as long as the server may think

export class Reading {
  /** The last answer; null before there is one. */
  value = signal(null);
  /** When it was asked for, by this browser's clock: what it says is no older. */
  at = signal(null);
  /** Why the last try failed; null when it did not. */
  error = signal(null);
  everyMs;
  #ask;
  #askedAt = null; // as long as the server owes an answer
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

  /** Whether the first answer was that there is none to this question. */
  get isRefused() {
    const error = this.error.value;
    return this.value.value === null && error instanceof Refused && error.isFinal;
  }

  get isDue() {
    return !this.isRefused && performance.now() - this.#triedAt >= this.everyMs;
  }

  /**
   * Whether what is shown is not of now: the last try failed, or the server owes an answer. That this page asks late,
   * because it was held up itself, says nothing of the server.
   */
  isStale(now) {
    const isOwed = this.#askedAt !== null && now - this.#askedAt > OWED_MS;
    return this.at.value !== null && (this.error.value !== null || isOwed);
  }

  /** Ask again at the next opportunity. */
  hurry() {
    this.#triedAt = -Infinity;
    if (this.isRefused) this.error.value = null;
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
    const at = (this.#askedAt = Date.now());
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
    } finally {
      this.#askedAt = null;
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

/**
 * What is open, read. When it is gone, or never was, nothing is open any more, and that is said.
 * @param {import("./console.js").Console} admin
 * @param {object} opened
 * @param {import("@preact/signals").ReadonlySignal<string | null>} opened.openId
 * @param {(id: string) => Promise<any>} opened.read @param {string} opened.gone what to say
 */
export async function readOpen(admin, { openId, read, gone }) {
  const id = openId.peek();
  try {
    return await read(encodeURIComponent(id));
  } catch (error) {
    if (!(error instanceof Refused) || error.status !== 404) throw error;
    if (openId.peek() === id) {
      admin.route.set({ open: null });
      admin.say(gone);
    }
    return null;
  }
}

/** A page of a list. Where the address names one that is none, it leads to the first. @param {() => Promise<any>} read */
export async function readPage(admin, read) {
  try {
    return await read();
  } catch (error) {
    if (!(error instanceof Refused) || error.param !== "cursor") throw error;
    admin.route.set({ after: null }); // another question: what is returned here is not shown
    admin.say("There is no such page: this is the first one.");
    return null;
  }
}
