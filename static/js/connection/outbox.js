/**
 * Frames that were sent, or wait to be sent, and have no answer yet; a new connection sends them again.
 *
 * A message is stored with its idempotency key before it is sent and forgotten at `response.created`,
 * so that it survives a crash of the tab and still makes exactly one answer. Everything else is kept
 * in memory, matched to its answer by `event_id`.
 */

import { newKey } from "./protocol.js";

const PREFIX = "parley.unsent."; // one item per message: two tabs never overwrite each other's

/**
 * @typedef {object} Send one message on its way
 * @property {string} key its idempotency key
 * @property {string | null} sessionId null until a new session is created
 * @property {string | null} sessionKey idempotency key of that `session.create`
 * @property {string} text of the question, "" where one that is stored is answered again
 * @property {object} [as] the fields of the frame that has it wait, in place of a `response.create`
 * @property {object} [wish] what its `response.create` says; pages of an older version stored the text alone
 * @property {object} [settings] of the session that is to be made for it
 * @property {string} [editOf] the message in whose place it stands
 * @property {number} [at] when it was sent first
 * @property {boolean} stopped the user pressed Stop before `response.created`
 */

export class Outbox {
  /** @type {Map<string, Send>} messages without a `response.created`, by key */
  sends = new Map();
  /** @type {Map<string, object>} other unanswered frames, by event id */
  #frames = new Map();
  /** @type {WeakMap<object, number>} when each of them was sent first */
  #since = new WeakMap();
  #last = 0;
  #store;

  /** @param {import("./storage.js").Store} store holds what an earlier life of the page left unsent */
  constructor(store) {
    this.#store = store;
    const stored = store.names(PREFIX).map((name) => store.get(name)).filter((send) => send?.key);
    stored.sort((one, other) => (one.at ?? 0) - (other.at ?? 0));
    for (const send of stored) this.sends.set(send.key, send);
  }

  /** Store a message; the caller sends its frames afterwards. @returns {Send} */
  addSend(wish, sessionId, more = {}) {
    const sessionKey = sessionId === null ? newKey() : null;
    const text = wish.input ?? "";
    const send = { key: newKey(), sessionId, sessionKey, text, wish, ...more, stopped: false, at: this.#now() };
    this.sends.set(send.key, send);
    this.#store.set(PREFIX + send.key, send);
    return send;
  }

  /** @param {string | null} sessionId null: those of the new chat @returns {Send[]} in the order they were sent */
  sendsOf(sessionId) {
    return [...this.sends.values()].filter((send) => send.sessionId === sessionId);
  }

  /** Change a stored message: its session came into being, or the user stopped it. */
  updateSend(send, change) {
    Object.assign(send, change);
    this.#store.set(PREFIX + send.key, send);
  }

  removeSend(key) {
    const send = this.sends.get(key);
    this.sends.delete(key);
    this.#store.remove(PREFIX + key);
    return send;
  }

  /** The frames that bring a message forward: first its session, then itself, then its early stop. */
  framesOf({ key, sessionId, sessionKey, text, wish = { input: text }, as, settings, stopped }) {
    if (as) return [{ ...as, event_id: key, idempotency_key: key, input: text }];
    if (sessionId === null) {
      return [{ type: "session.create", event_id: key, idempotency_key: sessionKey, ...(settings && { settings }) }];
    }
    const named = { session_id: sessionId, idempotency_key: key };
    const create = { type: "response.create", event_id: key, ...named, ...wish };
    return stopped ? [create, { type: "stop", ...named }] : [create];
  }

  /** Keep any other frame until it is answered; it replaces one that changes the same. @returns it with its `event_id` */
  addFrame(frame) {
    const kept = { ...frame, event_id: newKey() };
    for (const [otherId, other] of this.#frames) {
      const isUpdate = frame.type === "session.update" && other.type === frame.type;
      const ofSame = other.session_id === frame.session_id && fieldsOf(other) === fieldsOf(frame);
      if (isUpdate && ofSame) this.#frames.delete(otherId);
    }
    this.keep(kept);
    return kept;
  }

  /** Keep a frame that was answered with "not now". */
  keep(frame) {
    this.#frames.set(frame.event_id, frame);
    if (!this.#since.has(frame)) this.#since.set(frame, this.#now());
  }

  /** Whether a frame still waits for its answer. */
  keeps(frame) {
    return this.#frames.has(frame.event_id);
  }

  /**
   * Forget the frames that this one answers, and return the one it names by `event_id`. A stop is
   * also answered by the end of what it stopped, a rename by the session that has that title, a word on a call by
   * what becomes of it.
   */
  settle(frame) {
    const eventId = frame.event_id ?? frame.error?.event_id;
    const named = this.#frames.get(eventId);
    this.#frames.delete(eventId);
    for (const [otherId, kept] of this.#frames) {
      if (answers(frame, kept)) this.#frames.delete(otherId);
    }
    return named;
  }

  /** Everything a new connection must send again, in the order it was first sent. */
  unanswered() {
    const sends = [...this.sends.values()].map((send) => ({ at: send.at ?? 0, frames: this.framesOf(send) }));
    const others = [...this.#frames.values()].map((frame) => ({ at: this.#since.get(frame), frames: [frame] }));
    return [...sends, ...others].sort((one, other) => one.at - other.at).flatMap(({ frames }) => frames);
  }

  /** Milliseconds, and never the same twice. */
  #now() {
    this.#last = Math.max(this.#last + 1, Date.now());
    return this.#last;
  }
}

function answers(frame, kept) {
  const sessionId = frame.session?.id ?? frame.session_id;
  switch (frame.type) {
    case "response.cancelling":
      return kept.type === "stop" && kept.response_id === frame.response_id;
    case "response.done":
      return ["stop", "tool_call.consent"].includes(kept.type) && kept.response_id === frame.response.id;
    case "response.output_item.added":
    case "response.output_item.done":
      return kept.type === "tool_call.consent" && isSettled(frame.item, kept.call_id);
    case "session.updated":
      return kept.type === "session.update" && kept.session_id === sessionId && saysAll(frame.session, kept);
    case "session.deleted":
      return kept.session_id === sessionId;
    default:
      return false;
  }
}

/** Whether it says that a call waits for no word any more. */
const isSettled = (item, callId) =>
  item?.type === "function_call_output" && item.call_id === callId && item.status !== "awaiting_consent";

/** Whether a session has all that an update asks for. */
function saysAll(session, { title = session.title, pinned = session.pinned, settings = session.settings }) {
  const sorted = (object = {}) => JSON.stringify(Object.entries(object).sort());
  return title === session.title && pinned === session.pinned && sorted(settings) === sorted(session.settings);
}

const fieldsOf = ({ event_id: _, ...fields }) => String(Object.keys(fields));
