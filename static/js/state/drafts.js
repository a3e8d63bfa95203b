/** What is typed in the composer of each chat, kept over a reload; and why a message came back to it. */

import { signal } from "@preact/signals";

const PREFIX = "parley.draft.";
const NEW = PREFIX + "new"; // of the new chat

const nameOf = (sessionId) => (sessionId === null ? NEW : PREFIX + sessionId);

export class Drafts {
  /** Of the chat on screen. */
  text = signal("");
  /** @type {import("@preact/signals").Signal<Map<string, {error: object, until: number}>>} by name */
  #refusals = signal(new Map());
  #store;
  #chat;

  /** @param {import("../connection/storage.js").Store} store @param {import("./chat.js").Chat} chat */
  constructor(store, chat) {
    this.#store = store;
    this.#chat = chat;
  }

  /** Another chat is on screen, or its draft was changed elsewhere. */
  load() {
    this.text.value = this.#store.get(nameOf(this.#chat.currentId)) ?? "";
  }

  /** What the user types. */
  set(text) {
    const sessionId = this.#chat.currentId;
    this.text.value = text;
    if (text !== "") return this.#store.set(nameOf(sessionId), text);
    this.#store.remove(nameOf(sessionId));
    this.refuse(sessionId, null);
  }

  /** Forget the draft of a session that is gone. @returns {string | null} what it was */
  take(sessionId) {
    const text = this.#store.get(nameOf(sessionId));
    this.#store.remove(nameOf(sessionId));
    this.refuse(sessionId, null);
    return text;
  }

  /** Put a text before what is typed already. */
  putBefore(sessionId, text) {
    const name = nameOf(sessionId);
    this.#store.set(name, [text, this.#store.get(name)].filter(Boolean).join("\n\n"));
    if (sessionId === this.#chat.currentId) this.load();
  }

  /** Why the message in the composer did not go out, or could not; or null. */
  get refusal() {
    const { currentId, sessions } = this.#chat;
    const isLocked = sessions.get(currentId)?.session.locked;
    const closed = isLocked ? { error: { code: "session_locked" }, until: 0 } : null;
    return this.#refusals.value.get(nameOf(currentId)) ?? closed;
  }

  /** Say beside a draft why it was refused, or with null that it no longer is. */
  refuse(sessionId, error) {
    const refusals = new Map(this.#refusals.value);
    refusals.delete(nameOf(sessionId));
    if (error) refusals.set(nameOf(sessionId), { error, until: Date.now() + (error.retry_after_ms ?? 0) });
    this.#refusals.value = refusals;
  }

  /** What was in the way of some drafts no longer is: those of one session, or all. */
  over(code, sessionId = undefined) {
    const refusals = [...this.#refusals.value].filter(([name, { error }]) => {
      const isMeant = sessionId === undefined || name === nameOf(sessionId);
      return !isMeant || error.code !== code;
    });
    this.#refusals.value = new Map(refusals);
  }
}
