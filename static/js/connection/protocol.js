/**
 * The words of `chat.v1` that both the state and the socket need: ids, close codes, error texts.
 * Frames themselves are plain objects with the field names of the wire; nothing renames them.
 */

export const SUBPROTOCOL = "chat.v1";

/** The ends of a response that the user did not ask for, as a reader should see them. */
const REASON_TEXTS = {
  admin_cancelled: "stopped by an administrator",
  superseded: "stopped by a newer question",
  steered: "goes on with your next message",
  no_viewers: "stopped, nobody was watching",
  session_deleted: "chat deleted",
  max_output_tokens: "reached the length limit",
  repetition: "began to repeat itself",
  deadline: "ran out of time",
  quota: "quota used up",
  server_shutdown: "the server shut down, ask again",
  owner_lost: "the server process was lost, ask again",
  engine_lost: "its engine was lost, and cannot go on in the middle",
  content_filter: "withheld by a filter",
  engine_error: "the model failed, ask again",
  output_format_refused: "the form that was asked for cannot be had",
  model_unavailable: "the model could not be loaded, ask again",
  store_lost: "the storage failed, ask again",
};

/** The reasons of a response that somebody wanted to end; the others cut it short. */
const STOP_REASONS = new Set(
  "client_cancelled admin_cancelled superseded steered no_viewers session_deleted".split(" "),
);

/** What happened, and what to do about it. `{wait}` becomes a countdown where the server gave one. */
const ERROR_TEXTS = {
  invalid_json: "The server could not read that. Reload the page and try again.",
  unknown_type: "This page and the server speak different versions. Reload the page.",
  invalid_field: "The server refused that message. Change it and send it again.",
  output_format_refused: "The form that was asked for cannot be had: {message}.",
  call_not_found: "That call is not there any more.",
  consent_settled: "That call was answered meanwhile.",
  tools_not_supported: "This model takes no tools. Choose another one, or take the tools out of the settings of this chat.",
  tool_not_found: "A tool of this chat is not there any more: {message}. Look at the settings of this chat.",
  tool_server_unavailable: "A tool of this chat cannot be had now: {message}. Try again {wait}.",
  tools_too_large: "This chat has too many tools. Take some out of its settings, and send the message again.",
  message_too_large: "That message is too long. Shorten it and send it again.",
  context_length_exceeded: "That message does not fit the model's memory. Shorten it and send it again.",
  too_many_subscriptions: "Too many chats are open here. Reload the page.",
  not_subscribed: "This chat lost its connection. Reload the page.",
  token_invalid: "You are not signed in any more. Open a new login URL.",
  token_expired: "Your sign-in has expired. Open a new login URL.",
  forbidden: "You may not do that here.",
  session_locked: "An administrator locked this chat. Start a new one.",
  session_not_found: "This chat no longer exists. Start a new one.",
  message_not_found: "That message no longer exists. Reload the page.",
  response_not_found: "That answer is already over.",
  item_not_found: "That message does not wait any more.",
  model_not_found: "The server does not have that model.",
  response_in_progress: "An answer is still being written. Wait for it or stop it, then send again.",
  idempotency_key_reused: "That message was already sent. Reload the page to see it.",
  revision_conflict: "Somebody else changed this chat. Try again.",
  rate_limited: "That was too fast. Send it again {wait}.",
  quota_exceeded: "Your quota is used up. Send it again {wait}.",
  queue_full: "Too many messages wait already. Send it again {wait}.",
  model_unavailable: "The model cannot be loaded. {message}. Choose another one, or send it again {wait}.",
  engine_unavailable: "The model is restarting. Send it again {wait}.",
  store_unavailable: "The server cannot save right now. Send it again {wait}.",
  draining: "The server is restarting. Send it again {wait}.",
  internal: "Something broke on the server. Send it again.",
};

const CLOSE_TEXTS = {
  1009: "The last message was too big for the server. Shorten it, then reconnect.",
  4400: "The server could not read what this page sent. Reload the page.",
  4403: "You may not connect to this server.",
  4406: "This page and the server speak different versions. Reload the page.",
  4408: "The server heard nothing from this page. Reconnect to go on.",
};

const LOSSES = [1001, 1006, 1012];

/** A new idempotency key: 1 to 128 of `[A-Za-z0-9_-]`. `randomUUID` exists on https and localhost only. */
export function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** @param {{code: string, message?: string, retry_after_ms?: number}} error @param {number} waitMs left to wait */
export function errorText(error, waitMs = error.retry_after_ms ?? 0) {
  const seconds = Math.ceil(waitMs / 1000);
  const wait = seconds > 0 ? `in ${seconds} s` : "now";
  const text = ERROR_TEXTS[error.code] ?? error.message ?? "Something went wrong. Try again.";
  return text.replace("{wait}", wait).replace("{message}", () => error.message ?? "It is not there");
}

/** Why an answer ended, in a reader's words; empty when it simply came to its end. */
export function reasonText(reason) {
  return REASON_TEXTS[reason] ?? "";
}

/** What a model is doing, for a reader; empty of one that is there. @param {object} model of the list */
export function modelState({ state, progress, problem }) {
  if (state === "loading") return `is being loaded${progress > 0 ? `, ${Math.round(progress * 100)} %` : ""}`;
  if (state === "failed") return problem ?? "could not be loaded";
  return state === "not_loaded" || state === "unloading" ? "loaded when you ask" : "";
}

/** One word for how a message ended; empty if it is whole. @param {string} status of the message */
export function endText(status, reason) {
  if (status === "failed") return "Failed";
  if (status !== "interrupted") return "";
  return reason && !STOP_REASONS.has(reason) ? "Cut short" : "Stopped";
}

/**
 * What a client does after a close: reconnect (perhaps after a stated wait), ask for a login, or stop.
 * 1000, 1009 and 44xx stay closed, except 4401 (sign in again), 4410 (evicted) and 4429 (wait); all others reconnect.
 * 4410 ends the chats that the frames before it named, and a new connection serves the others.
 * `isLoss`: nobody refused, the connection or the worker is gone.
 * @param {number} code @param {string} reason `code` or `code;key=value`
 */
export function closePolicy(code, reason = "") {
  if (code === 4401) return { action: "login" };
  const wait = /retry_after_ms=(\d+)/.exec(reason)?.[1];
  if (code === 4410) return { action: "reconnect", isEviction: true };
  if (code === 4429) return { action: "reconnect", afterMs: Number(wait ?? 5000) };
  if (code === 4500) return { action: "reconnect", maxAttempts: 5 };
  if ([1000, 1002, 1003, 1007, 1009].includes(code) || (code >= 4400 && code < 4500)) {
    return { action: "stop", text: CLOSE_TEXTS[code] ?? "The server closed the connection." };
  }
  return { action: "reconnect", afterMs: Number(wait ?? 0), isLoss: LOSSES.includes(code) };
}

/** The text of a wire message's content parts. */
export function contentText(content = []) {
  return content.map((part) => (part.type === "text" ? part.text : "")).join("");
}
