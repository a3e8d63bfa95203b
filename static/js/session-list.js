/** The sidebar's sessions, whatever brings them: a page over HTTP, an event, a change made here. */

/**
 * @typedef {object} Entry replaced when it changes, never edited, so that its row notices
 * @property {object} session the `session` object of the protocol
 * @property {boolean} active an answer is being written
 * @property {boolean} unseen an answer ended that was not looked at
 */

export class SessionList {
  /** @type {Map<string, Entry>} */
  #entries = new Map();

  /** @returns {Entry | undefined} */
  get(id) {
    return this.#entries.get(id);
  }

  get size() {
    return this.#entries.size;
  }

  /** Pinned first, then the latest. */
  get sorted() {
    return [...this.#entries.values()].sort(
      (a, b) =>
        Number(b.session.pinned ?? false) - Number(a.session.pinned ?? false) ||
        b.session.updated_at - a.session.updated_at,
    );
  }

  /** Take over what the server says of a session, unless something newer is known already. */
  put(session) {
    const known = this.#entries.get(session.id);
    if (known && (session.revision ?? 0) < (known.session.revision ?? 0)) return;
    const says = session.active_response_id !== undefined;
    this.#entries.set(session.id, {
      session: { ...known?.session, ...session },
      active: says ? session.active_response_id !== null : (known?.active ?? false),
      unseen: known?.unseen ?? false,
    });
  }

  /** A page of sessions. One that holds all of them also shows which are gone; `keepId` stays. */
  putPage(sessions, complete, keepId) {
    const listed = new Set(sessions.map((session) => session.id));
    for (const id of complete ? [...this.#entries.keys()] : []) {
      if (!listed.has(id) && id !== keepId) this.#entries.delete(id);
    }
    sessions.forEach((session) => this.put(session));
  }

  /** @param {Partial<Entry>} change */
  mark(id, change) {
    const entry = this.#entries.get(id);
    if (entry) this.#entries.set(id, { ...entry, ...change });
  }

  rename(id, title) {
    this.mark(id, { session: { ...this.#entries.get(id)?.session, title } });
  }

  /** A session with a newer message moves up. */
  touch(id, at) {
    const session = this.#entries.get(id)?.session;
    if (session && session.updated_at < at) this.mark(id, { session: { ...session, updated_at: at } });
  }

  delete(id) {
    this.#entries.delete(id);
  }
}
