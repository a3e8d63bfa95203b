/**
 * What waits to be asked in a session. The server keeps it, the same for all tabs; a newer revision replaces
 * an older one.
 */

/**
 * @typedef {object} QueueItem
 * @property {string} id
 * @property {string} idempotency_key
 * @property {string} [input] missing where a long text was left out
 * @property {number} created_at
 * @property {boolean} [now] it is asked as soon as may be
 * @property {{code: string, message: string}} [error] why it could not be asked
 */

export class Queue {
  revision = -1;
  paused = false;
  /** @type {QueueItem[]} in order */
  items = [];

  /** An event; one that came late tells nothing new. */
  take(wire) {
    if (wire.revision > this.revision) this.replace(wire);
  }

  /** What a session has as it is read anew; nothing waits where nothing is said of it. */
  replace({ revision, paused, items } = { revision: -1, paused: false, items: [] }) {
    Object.assign(this, { revision, paused, items });
  }
}

/** The frame fields of a message that waits, beside its words and its key. */
export const toQueue = (sessionId) => ({ type: "queue.add", session_id: sessionId });
export const toSteer = (responseId) => ({ type: "response.steer", previous_response_id: responseId });
