/**
 * Deleting a chat: hidden at once, deleted for good only when the time for an undo has run out. What was
 * deleted stays deleted, even if the browser dies before that: the next page ends it.
 */

import { signal } from "@preact/signals";

export const UNDO_MS = 10_000;

const PREFIX = "parley.removed."; // session id to the moment at which it is deleted for good

export class Removals {
  /** The sessions that are hidden, each with its timer. */
  #timers = signal(new Map());
  #own = new Set(); // another tab's removals are its own to finish, while it is there
  #store;
  #remove;

  /**
   * @param {import("../connection/storage.js").Store} store
   * @param {(sessionId: string) => void} remove deletes for good
   */
  constructor(store, remove) {
    this.#store = store;
    this.#remove = remove;
    for (const name of store.names(PREFIX)) this.#wait(name.slice(PREFIX.length), store.get(name));
  }

  hides(sessionId) {
    return this.#timers.value.has(sessionId);
  }

  start(sessionId) {
    const until = Date.now() + UNDO_MS;
    this.#own.add(sessionId);
    this.#store.set(PREFIX + sessionId, until);
    this.#wait(sessionId, until);
  }

  /** It is being deleted for good; should the page go before that is done, the next one sees to it. */
  finishing(sessionId) {
    this.#store.set(PREFIX + sessionId, Date.now());
  }

  /** It is not to be removed any more: its user wants it back, or it is gone. */
  forget(sessionId) {
    this.#store.remove(PREFIX + sessionId);
    this.#show(sessionId);
  }

  /** Those that were removed on this page, and that nobody has had back elsewhere. */
  get pending() {
    return [...this.#own].filter((sessionId) => this.hides(sessionId) && this.#isWished(sessionId));
  }

  #wait(sessionId, until) {
    const timer = setTimeout(() => this.#finish(sessionId), Math.max(0, until - Date.now()));
    this.#timers.value = new Map(this.#timers.value).set(sessionId, timer);
  }

  /** Another tab may have had it back meanwhile. */
  #finish(sessionId) {
    this.#show(sessionId);
    if (this.#isWished(sessionId)) this.#remove(sessionId);
  }

  #isWished(sessionId) {
    return this.#store.get(PREFIX + sessionId) !== null;
  }

  #show(sessionId) {
    const timers = new Map(this.#timers.value);
    clearTimeout(timers.get(sessionId));
    timers.delete(sessionId);
    this.#timers.value = timers;
  }
}
