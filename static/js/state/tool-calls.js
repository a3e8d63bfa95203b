/**
 * The tools that a model calls while it answers: what each was given, and what it gave back. The frames have the names
 * of OpenAI's Responses API. What they gave back comes with a message of its own, whose role is `tool`.
 */

const UNFINISHED = ["failed", "incomplete"];

/**
 * @typedef {object} ToolCall
 * @property {string} id of the item, by which its arguments grow
 * @property {string} callId by which its output finds it
 * @property {string} name of the tool
 * @property {string} arguments JSON, or the beginning of it
 * @property {string} status of the item: "in_progress", "completed", "incomplete", "failed"
 * @property {string | null} output null until it is there
 * @property {string} outputStatus
 * @property {boolean} [isAnsweredByMessage] the output is that of the message after the answer
 * @property {number} version +1 per change
 */

/**
 * Take what a frame says of tool calls.
 * @param {ToolCall[] | null} calls those held; null: none, which costs nothing @param {object} frame
 * @returns {ToolCall[] | null} the same ones, and perhaps a new one
 */
export function withToolFrame(calls, frame) {
  switch (frame.type) {
    case "response.output_item.added":
    case "response.output_item.done":
      return withItem(calls, frame.item);
    case "response.function_call_arguments.delta":
      return withArguments(calls, frame.item_id, (held) => held + text(frame.delta));
    case "response.function_call_arguments.done":
      return withArguments(calls, frame.item_id, () => text(frame.arguments));
    default:
      return calls;
  }
}

/** @param {object[]} items all of an answer, as a snapshot brings them @returns {ToolCall[] | null} */
export function toolCallsOf(items) {
  return items.reduce(withItem, null);
}

/**
 * @param {ToolCall} call @param {boolean} goesOn the answer is still being written
 * @param {boolean} isLast nothing follows the answer: what the tool gives back may still come
 */
export function stateOf(call, goesOn, isLast = true) {
  if ([call.status, call.outputStatus].some((status) => UNFINISHED.includes(status))) return "failed";
  if (call.output !== null) return "done";
  if (goesOn) return "running";
  return isLast && call.status === "completed" ? "waiting" : "ended";
}

/**
 * All calls of an answer that has ended; one that was held keeps its output.
 * @param {ToolCall[] | null} calls @param {object[]} items @returns {ToolCall[] | null}
 */
export function storedCalls(calls, items) {
  const ids = new Set(items.map(({ id }) => id));
  const kept = (items.reduce(withItem, calls) ?? []).filter(({ id }) => ids.has(id));
  return kept.length > 0 ? kept : null;
}

/** What each part of a tool's message says. @param {object[]} content @returns {object[]} items */
export function outputsOf(content = []) {
  const parts = content.filter((part) => typeof part.call_id === "string");
  return parts.map(({ call_id, text: output }) => ({ type: "function_call_output", call_id, output, status: "completed" }));
}

/**
 * Take what the message after an answer says of its calls, and nothing that another branch has said.
 * @param {ToolCall[] | null} calls @param {object[]} outputs @returns {boolean} whether that has changed anything
 */
export function withOutputs(calls, outputs) {
  let changed = false;
  for (const call of calls ?? []) {
    const found = outputs.find(({ call_id }) => call_id === call.callId);
    if (!found && !call.isAnsweredByMessage) continue; // an output of the answer's own log stays
    const output = found ? outputText(found.output) : null;
    if (output === call.output) continue;
    change(call, { output, outputStatus: found?.status ?? "", isAnsweredByMessage: output !== null });
    changed = true;
  }
  return changed;
}

/** An item that comes again replaces what is held of it: a log may be replayed. */
function withItem(calls, item) {
  if (item?.type === "function_call_output") return withOutput(calls, item);
  if (item?.type !== "function_call") return calls;
  const said = {
    callId: item.call_id,
    name: text(item.name),
    arguments: text(item.arguments),
    status: item.status ?? "in_progress",
  };
  const known = calls?.find(({ id }) => id === item.id);
  if (!known) return [...(calls ?? []), { id: item.id, ...said, output: null, outputStatus: "", version: 1 }];
  change(known, said);
  return calls;
}

function withOutput(calls, item) {
  const call = calls?.find(({ callId }) => callId === item.call_id);
  if (call) change(call, { output: outputText(item.output), outputStatus: item.status ?? "completed" });
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
