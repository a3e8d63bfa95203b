/**
 * The tools that a model calls while it answers: what each was given, and what it gave back. The frames have the names
 * of OpenAI's Responses API. What a client gave back comes with a message of its own, whose role is `tool`; what the
 * server's own tools gave back, and how they go, is part of the answer.
 */

/**
 * @typedef {object} ToolCall
 * @property {string} id of the item, by which its arguments grow
 * @property {string} callId by which its output finds it
 * @property {string} name of the tool
 * @property {string} arguments JSON, or the beginning of it
 * @property {string} status of the item: "in_progress", "completed", "incomplete", "failed"
 * @property {number | null} textOffset how much of the answer's text stands before it; null: all of it
 * @property {string | null} output null until it is there
 * @property {ServerRun | null} run null: a client carries it out
 * @property {number} version +1 per change
 *
 * @typedef {object} ServerRun how a tool goes that the server runs
 * @property {string} server its name
 * @property {string} status "awaiting_consent", "in_progress", "completed", "failed", "denied", "cancelled", "unknown"
 * @property {string} code why it has no result, or ""
 * @property {string} consent the policy of a tool that a user is asked about: "always" or "once"
 * @property {number | null} expiresAt until when they are asked
 * @property {number | null} since when it was seen to begin, in milliseconds since 1970
 * @property {string | null} said what was answered here, and is on its way
 *
 * @typedef {"writing" | "waiting" | "asked" | "running" | "done" | "failed" | "invalid" | "cut" | "ended" | "denied"
 *   | "stopped" | "unknown"} CallState
 */

const RUN_STATES = {
  awaiting_consent: "asked",
  in_progress: "running",
  completed: "done",
  incomplete: "failed",
  failed: "failed",
  denied: "denied",
  cancelled: "stopped",
  unknown: "unknown",
};

/**
 * Take what a frame says of tool calls.
 * @param {ToolCall[] | null} calls those held; null: none, which costs nothing @param {object} frame
 * @param {number} textLength of the answer so far
 * @returns {ToolCall[] | null} the same ones, and perhaps a new one
 */
export function withToolFrame(calls, frame, textLength) {
  switch (frame.type) {
    case "response.output_item.added":
    case "response.output_item.done":
      return withItem(calls, frame.item, textLength);
    case "response.function_call_arguments.delta":
      return withArguments(calls, frame.item_id, (held) => held + text(frame.delta));
    case "response.function_call_arguments.done":
      return withArguments(calls, frame.item_id, () => text(frame.arguments));
    default:
      return calls;
  }
}

/**
 * All of an answer, as a snapshot brings them; where in the text they stand is known of those held.
 * @param {object[]} items @param {ToolCall[] | null} [held] @returns {ToolCall[] | null}
 */
export function toolCallsOf(items, held = null) {
  const calls = withItems(null, items);
  for (const call of calls ?? []) call.textOffset ??= held?.find(({ id }) => id === call.id)?.textOffset ?? null;
  return calls;
}

/**
 * How a call goes, for a reader.
 * @param {ToolCall} call @param {boolean} goesOn the answer is still being written
 * @param {boolean} isLast nothing follows the answer: what the tool gives back may still come
 * @returns {CallState}
 */
export function stateOf(call, goesOn, isLast = true) {
  if (call.status === "failed") return "invalid";
  if (call.status === "incomplete") return "cut";
  if (call.run) return runState(call.run, goesOn);
  if (call.output !== null) return "done";
  if (call.status === "in_progress") return goesOn ? "writing" : "cut";
  return goesOn || isLast ? "waiting" : "ended";
}

/** An answer that has ended has ended its calls, too. */
function runState({ status }, goesOn) {
  const state = RUN_STATES[status] ?? "running";
  return !goesOn && (state === "asked" || state === "running") ? "stopped" : state;
}

/**
 * All calls of an answer that has ended, and what became of those that the server ran; those held stay the same objects.
 * @param {ToolCall[] | null} held @param {object[]} items @param {object[]} [outputs] @returns {ToolCall[] | null}
 */
export function storedCalls(held, items, outputs = []) {
  const ids = new Set(items.map(({ id }) => id));
  const kept = (withItems(held, items) ?? []).filter(({ id }) => ids.has(id));
  for (const call of kept) if (call.run) change(call, { run: null, output: null }); // a stop may have cut it
  const calls = withItems(kept, outputs);
  return calls.length > 0 ? calls : null;
}

/**
 * A text and the calls in it, in the order in which they were written. What is not painted yet hides those after it.
 * @param {string} text as far as it is painted @param {ToolCall[]} calls in their order @param {number} whole how long the text is in all
 * @returns {{text: string, calls: ToolCall[]}[]}
 */
export function piecesOf(text, calls, whole) {
  const pieces = [{ text: "", calls: [] }];
  let begin = 0;
  const write = (part) => {
    if (pieces.at(-1).calls.length > 0 && part.trim() === "") return; // no space parts cards
    if (pieces.at(-1).calls.length > 0) pieces.push({ text: "", calls: [] });
    pieces.at(-1).text += part;
  };
  for (const call of calls) {
    const place = Math.max(begin, Math.min(call.textOffset ?? whole, whole));
    if (place > text.length) break;
    write(text.slice(begin, place));
    pieces.at(-1).calls.push(call);
    begin = place;
  }
  write(text.slice(begin));
  return pieces;
}

/** Those of an answer that wait for a user's word. @param {import("./message.js").Message | undefined} message */
export function askedCalls(message) {
  return (message?.toolCalls ?? []).filter((call) => stateOf(call, message.streaming) === "asked");
}

/** Whether the server asks for the answer after this one: it has carried out all that this one has called. */
export function goesOnByItself({ reason, toolCalls }) {
  const runs = (toolCalls ?? []).filter(({ status }) => status === "completed").map(({ run }) => run);
  return reason === "tool_calls" && runs.length > 0 && !runs.includes(null);
}

/** Note what a user has answered here; null: that has not worked. @param {ToolCall} call @param {string | null} said */
export function withAnswer(call, said) {
  change(call, { run: { ...call.run, said } });
}

/** What each part of a tool's message says. @param {object[]} content @returns {{call_id: string, output: string}[]} */
export function outputsOf(content = []) {
  const parts = content.filter((part) => typeof part.call_id === "string");
  return parts.map(({ call_id, text: output }) => ({ type: "function_call_output", call_id, output }));
}

/**
 * Take what the message after an answer says of its calls, and nothing that another branch has said.
 * @param {ToolCall[] | null} calls @param {object[]} outputs @returns {boolean} whether that has changed anything
 */
export function withOutputs(calls, outputs) {
  let changed = false;
  for (const call of calls ?? []) {
    if (call.run) continue; // the answer itself says more
    const found = outputs.find(({ call_id }) => call_id === call.callId);
    const output = found ? outputText(found.output) : null;
    if (output === call.output) continue;
    change(call, { output });
    changed = true;
  }
  return changed;
}

/** The items of a whole answer, whose text stands before them where nothing else is said. */
function withItems(calls, items) {
  return items.reduce((held, item) => withItem(held, item, null), calls);
}

/** An item that comes again replaces what is held of it: a log may be replayed. */
function withItem(calls, item, textLength) {
  if (item?.type === "function_call_output") return withOutput(calls, item, textLength !== null);
  if (item?.type !== "function_call") return calls;
  const said = {
    callId: item.call_id,
    name: text(item.name),
    arguments: text(item.arguments),
    status: item.status ?? "in_progress",
  };
  const known = calls?.find(({ id }) => id === item.id);
  if (known) change(known, said);
  if (known) return calls;
  const place = { textOffset: item.text_offset ?? textLength };
  return [...(calls ?? []), { id: item.id, ...said, ...place, output: null, run: null, version: 1 }];
}

function withOutput(calls, item, isSeen) {
  const call = calls?.find(({ callId }) => callId === item.call_id);
  if (!call) return calls;
  const status = item.status ?? "completed";
  const isOpen = status === "awaiting_consent" || status === "in_progress";
  const began = isSeen && status === "in_progress" ? Date.now() : null;
  const run = {
    server: text(item.server_label),
    status,
    code: text(item.code),
    consent: item.consent ?? "always",
    expiresAt: item.expires_at ?? null,
    since: call.run?.since ?? began,
    said: status === "awaiting_consent" ? (call.run?.said ?? null) : null,
  };
  change(call, { output: isOpen ? null : outputText(item.output), run });
  return calls;
}

function withArguments(calls, itemId, changed) {
  const call = calls?.find(({ id }) => id === itemId);
  if (call) change(call, { arguments: changed(call.arguments) });
  return calls;
}

function change(call, said) {
  Object.assign(call, said);
  call.version += 1;
}

/** A text, or parts of one. */
function outputText(output) {
  return Array.isArray(output) ? output.map((part) => text(part?.text)).join("") : text(output);
}

const text = (value) => (typeof value === "string" ? value : "");
