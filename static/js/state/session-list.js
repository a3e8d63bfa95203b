/** The sidebar's sessions, which come as a page over HTTP, by an event, or by a change made here. */

/**
 * @typedef {object} Entry replaced when it changes, never edited, so that its row notices
 * @property {object} session the `session` object of the protocol
 * @property {boolean} active an answer is being written
 * @property {boolean} unseen an answer ended that was not looked at
 * @property {boolean} [removed] deleted here; the server has not said yet that it did so
 * @property {string} [was] its title for the server, which has not taken the new one yet
 */

export class SessionList {
  /** @type {Map<string, Entry>} */
  #entries = new Map();
  #gone = new Set(); // a page of the list that was read before the deletion brings none of them back

  /** @returns {Entry | undefined} */
  get(id) {
    return this.#entries.get(id);
  }

  get size() {
    return this.#entries.size;
  }

  /** Pinned first, then the latest. */
  get sorted() {
    return [...this.#entries.values()]
      .filter(({ removed }) => !removed)
      .sort(
        (a, b) =>
          Number(b.session.pinned ?? false) - Number(a.session.pinned ?? false) ||
          b.session.updated_at - a.session.updated_at,
      );
  }

  /** Take over what the server says of a session, unless something newer is known, or named, here already. */
  put(session) {
    if (this.#gone.has(session.id)) return;
    const known = this.#entries.get(session.id);
    if (known && (session.revision ?? 0) < (known.session.revision ?? 0)) return;
    const says = session.active_response_id !== undefined;
    const isRenamed = known?.was !== undefined && known.was === session.title;
    this.#entries.set(session.id, {
      session: { ...known?.session, ...session, ...(isRenamed && { title: known.session.title }) },
      active: says ? session.active_response_id !== null : (known?.active ?? false),
      unseen: known?.unseen ?? false,
      removed: known?.removed ?? false,
      was: isRenamed ? known.was : undefined,
    });
  }

  /**
   * A page of sessions. The newest also show which are gone: those of `held`, what was known when they
   * were asked for, that are newer than the last of them and not among them. `keepId` stays.
   */
  putPage(sessions, { held, complete, keepId }) {
    const listed = new Set(sessions.map((session) => session.id));
    const oldest = complete ? -Infinity : Math.min(...sessions.map((session) => session.updated_at));
    for (const entry of held) {
      const { id, updated_at } = entry.session;
      const isGone = updated_at > oldest && !listed.has(id) && id !== keepId;
      if (isGone && this.#entries.get(id) === entry) this.#entries.delete(id); // unless it changed since
    }
    sessions.forEach((session) => this.put(session));
  }

  /** @param {Partial<Entry>} change */
  mark(id, change) {
    const entry = this.#entries.get(id);
    if (entry) this.#entries.set(id, { ...entry, ...change });
  }

  rename(id, title) {
    const { session, was = session?.title } = this.#entries.get(id) ?? {};
    this.mark(id, { session: { ...session, title }, was });
  }

  /** Take back a rename: the title is the server's again. */
  unname(id) {
    const { session, was = session?.title } = this.#entries.get(id) ?? {};
    this.mark(id, { session: { ...session, title: was }, was: undefined });
  }

  /** A session with a newer message moves up. */
  touch(id, at) {
    const session = this.#entries.get(id)?.session;
    if (session && session.updated_at < at) this.mark(id, { session: { ...session, updated_at: at } });
  }

  delete(id) {
    this.#entries.delete(id);
  }

  /** The server has deleted it: no session will ever have its id again. */
  bury(id) {
    this.#gone.add(id);
    this.#entries.delete(id);
  }
}
