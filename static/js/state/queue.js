/**
 * What waits to be asked in a session. The server keeps it, the same for all tabs; a newer revision replaces
 * an older one.
 */

/**
 * @typedef {object} QueueItem
 * @property {string} id
 * @property {string} idempotency_key
 * @property {string} [input] missing where a long text was left out
 * @property {string} [beginning] of such a text
 * @property {number} created_at
 * @property {boolean} [now] it is asked as soon as may be
 * @property {{code: string, message: string}} [error] why it could not be asked
 */

export class Queue {
  revision = -1;
  paused = false;
  /** @type {QueueItem[]} in order */
  items = [];

  /** Whether its first message is sent as soon as the answer has ended. */
  get goesOn() {
    return !this.paused && this.items.length > 0 && !this.items[0].error;
  }

  /** An event; one that came late tells nothing new. */
  take(wire) {
    if (wire.revision > this.revision) this.replace(wire);
  }

  /** What a session has as it is read again; nothing waits where nothing is said of it. */
  replace({ revision, paused, items } = { revision: -1, paused: false, items: [] }) {
    Object.assign(this, { revision, paused, items });
  }
}

const PREFIX = "parley.queue-edit.";

/** What is typed in place of messages that wait, in this tab, until the server has it. */
export class QueueEdits {
  #store;
  #saving = new Set(); // ids of those whose change is on its way

  /** @param {import("../connection/storage.js").Store} store */
  constructor(store) {
    this.#store = store;
  }

  /** The text of the field that is open for an item, or null. */
  textOf({ id }) {
    return this.#saving.has(id) ? null : (this.#store.get(PREFIX + id)?.text ?? null);
  }

  keep(sessionId, { id }, text) {
    this.#store.set(PREFIX + id, { sessionId, text });
  }

  /** The field is closed; the text stays until the queue shows it. */
  save({ id }) {
    this.#saving.add(id);
  }

  drop({ id }) {
    this.#saving.delete(id);
    this.#store.remove(PREFIX + id);
  }

  /**
   * Forget what a session's queue shows by now.
   * @returns {string[]} texts whose message does not wait any more, and which nobody has sent
   */
  settle(sessionId, items) {
    const lost = [];
    for (const name of this.#store.names(PREFIX)) {
      const kept = this.#store.get(name);
      if (kept?.sessionId !== sessionId) continue;
      const id = name.slice(PREFIX.length);
      const item = items.find((other) => other.id === id);
      if (!item && !this.#saving.has(id)) lost.push(kept.text);
      if (!item || (this.#saving.has(id) && item.input === kept.text)) this.drop({ id });
    }
    return lost;
  }
}

/** The frame fields of a message that waits, beside its words and its key. */
export const toQueue = (sessionId) => ({ type: "queue.add", session_id: sessionId });
export const toSteer = (responseId) => ({ type: "response.steer", previous_response_id: responseId });
