/**
 * The tools that a model calls while it answers: what each was given, and what it gave back. The frames have the names
 * of OpenAI's Responses API. No server sends them yet; docs/protocol.md reserves them.
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

/** @param {ToolCall} call @param {boolean} goesOn the answer is still being written */
export function stateOf(call, goesOn) {
  if ([call.status, call.outputStatus].some((status) => UNFINISHED.includes(status))) return "failed";
  if (call.output !== null) return "done";
  return goesOn ? "running" : "ended";
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
