/** Frames as the server sends them, and a chat whose sent frames and changes are recorded. */

import { Outbox } from "../../static/js/connection/outbox.js";
import { Store } from "../../static/js/connection/storage.js";
import { Chat } from "../../static/js/state/chat.js";
import { Message } from "../../static/js/state/message.js";
import { Run } from "../../static/js/state/run.js";

export const SESSION = "ses_A";
export const RESPONSE = "resp_R";

export const session = (more = {}) => ({
  id: SESSION,
  title: "A chat",
  revision: 1,
  updated_at: 1000,
  active_response_id: null,
  ...more,
});

export const userMessage = (more = {}) => ({
  id: "msg_1",
  parent_id: null,
  role: "user",
  status: "completed",
  content: [{ type: "text", text: "2+2?" }],
  ...more,
});

export const assistantMessage = (more = {}) => ({
  id: "msg_2",
  parent_id: "msg_1",
  role: "assistant",
  status: "in_progress",
  response_id: RESPONSE,
  content: [],
  ...more,
});

export const messageEvent = (type, offset, message) => ({ type, session_id: SESSION, offset, message });

export const created = (more = {}) => ({
  type: "response.created",
  response: {
    id: RESPONSE,
    session_id: SESSION,
    message_id: "msg_2",
    parent_id: "msg_1",
    status: "queued",
  },
  idempotency_key: "k2",
  replayed: false,
  sequence_number: 1,
  fence: 1,
  ...more,
});

export const inProgress = (more = {}) => ({
  type: "response.in_progress",
  response_id: RESPONSE,
  sequence_number: 2,
  fence: 1,
  omitted_messages: 0,
  ...more,
});

/** A delta numbered `number`, or `[first, last]` when it is coalesced. */
export const delta = (number, text_offset, text, more = {}) => ({
  type: "response.output_text.delta",
  response_id: RESPONSE,
  ...(Array.isArray(number)
    ? { first_sequence_number: number[0], sequence_number: number[1] }
    : { sequence_number: number }),
  fence: 1,
  text_offset,
  delta: text,
  ...more,
});

export const snapshot = (number, text, more = {}) => ({
  type: "response.output_text.snapshot",
  response_id: RESPONSE,
  sequence_number: number,
  fence: 1,
  text,
  part: 1,
  parts: 1,
  ...more,
});

export const done = (number, text_length, { status = "completed", reason = "eos", ...more } = {}) => ({
  type: "response.done",
  response: {
    id: RESPONSE,
    session_id: SESSION,
    message_id: "msg_2",
    status,
    status_details: { reason },
    text_length,
  },
  sequence_number: number,
  fence: 1,
  engine: "released",
  durable: true,
  ...more,
});

export const subscribed = (more = {}) => ({
  type: "session.subscribed",
  session_id: SESSION,
  epoch: "Zr8",
  offset: 3,
  recovered: false,
  active_responses: [],
  viewers: 1,
  ...more,
});

/** A run whose `response.created` was applied, and a `text` that says what the reader sees. */
export function newRun() {
  const message = new Message(assistantMessage());
  const run = new Run(RESPONSE, message);
  run.receive(created());
  return { run, message };
}

/** A chat on recorded wires: `sent` frames, `changes`, `refetched` sessions, `waits` that `run` ends. */
export function newChat(store = new Store(null)) {
  const sent = [];
  const changes = [];
  const refetched = [];
  const waits = [];
  const outbox = new Outbox(store);
  const chat = new Chat({
    outbox,
    send: (frame) => sent.push(frame),
    refetch: (id) => refetched.push(id),
    later: (ms, run) => waits.push({ ms, run }),
    onchange: (change) => changes.push(change),
  });
  const receive = (...frames) => frames.forEach((frame) => chat.receive(frame));
  const take = (type) => sent.splice(0).filter((frame) => !type || frame.type === type);
  return { chat, outbox, sent, changes, refetched, waits, receive, take };
}

/** A chat that watches SESSION, in which an answer has begun: offset 3, sequence number 2. */
export function watchingChat(store) {
  const parts = newChat(store);
  parts.chat.open(SESSION);
  parts.receive(
    subscribed({ offset: 1, snapshot: { session: session(), messages: [], has_more: false } }),
    messageEvent("message.created", 2, userMessage()),
    messageEvent("message.created", 3, assistantMessage()),
    created(),
    inProgress(),
  );
  parts.sent.length = 0;
  parts.changes.length = 0;
  return parts;
}

/** Why the server refuses: for now, and for good. */
export const NOT_NOW = { type: "overloaded_error", code: "store_unavailable", retry_after_ms: 1000 };
export const NEVER = { type: "permission_error", code: "forbidden" };

export const refusal = (error, { event_id }) => ({ type: "error", error: { ...error, event_id } });
