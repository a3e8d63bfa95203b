/** The one line at the top: what is wrong with the connection or the server, and only if it lasts. */

import { signal } from "@preact/signals";

const DELAY_MS = 2000; // shorter troubles are nobody's business
const RESUMED_MS = 3000;

const HEALTH_TEXTS = {
  store: "The storage is away: running answers go on, nothing new can be sent yet",
  unavailable: "The model is restarting",
  stalled: "The model is slow to answer",
};

export class Banner {
  /** @type {import("@preact/signals").Signal<{tone: string, text: string, action?: object} | null>} */
  shown = signal(null);
  #timer = 0;
  #onlost;

  /** @param {() => void} onlost the connection has been away long enough to say so */
  constructor(onlost) {
    this.#onlost = onlost;
  }

  /** Trouble began, or goes on. */
  waiting() {
    this.#timer ||= setTimeout(() => {
      this.shown.value = { tone: "lost", text: "Reconnecting…" };
      this.#onlost();
    }, DELAY_MS);
  }

  /** The connection is there. @returns {boolean} whether it had been missed on screen */
  connected() {
    this.#settle();
    const missed = this.shown.value?.tone === "lost";
    this.shown.value = missed ? { tone: "good", text: "Resumed" } : null;
    if (missed) this.#timer = setTimeout(() => this.clear(), RESUMED_MS);
    return missed;
  }

  /** It stays closed until the user says otherwise. */
  stopped(text, action) {
    this.#settle();
    this.shown.value = { tone: "stopped", text, action };
  }

  /** What the server says is not well; it gives way to trouble with the connection itself. */
  health({ store, engine }) {
    const text = store ? HEALTH_TEXTS.store : HEALTH_TEXTS[engine];
    const { tone, text: before } = this.shown.value ?? {};
    if (text && text !== before && (!tone || tone === "degraded" || tone === "good")) {
      this.shown.value = { tone: "degraded", text };
    } else if (!text && tone === "degraded") this.shown.value = null;
  }

  clear() {
    this.#settle();
    this.shown.value = null;
  }

  #settle() {
    clearTimeout(this.#timer);
    this.#timer = 0;
  }
}
