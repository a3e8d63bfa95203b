/** Deleting a chat: hidden at once, deleted for good only when the time for an undo has run out. */

import { signal } from "@preact/signals";

export const UNDO_MS = 5000;

export class Removals {
  /** The sessions that are hidden, each with its timer. */
  #timers = signal(new Map());
  #remove;

  /** @param {(sessionId: string) => void} remove deletes for good */
  constructor(remove) {
    this.#remove = remove;
  }

  hides(sessionId) {
    return this.#timers.value.has(sessionId);
  }

  start(sessionId) {
    const timer = setTimeout(() => this.#finish(sessionId), UNDO_MS);
    this.#timers.value = new Map(this.#timers.value).set(sessionId, timer);
  }

  undo(sessionId) {
    const timers = new Map(this.#timers.value);
    clearTimeout(timers.get(sessionId));
    timers.delete(sessionId);
    this.#timers.value = timers;
  }

  /** The page goes away: what was deleted stays deleted. */
  finishAll() {
    for (const sessionId of this.#timers.value.keys()) this.#finish(sessionId);
  }

  #finish(sessionId) {
    this.undo(sessionId);
    this.#remove(sessionId);
  }
}
