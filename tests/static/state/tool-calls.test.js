import assert from "node:assert/strict";
import { test } from "node:test";

import { Message } from "../../../static/js/state/message.js";
import { shownMessages } from "../../../static/js/state/shown.js";
import { askedCalls, piecesOf, stateOf, toolCallsOf, withToolFrame } from "../../../static/js/state/tool-calls.js";
import { created, delta, done, inProgress, newRun, RESPONSE, snapshot } from "../frames.js";

const call = (more = {}) => ({
  type: "function_call",
  id: "fc_1",
  call_id: "call_1",
  name: "weather",
  arguments: "",
  status: "in_progress",
  ...more,
});
const output = (more = {}) => ({
  type: "function_call_output",
  id: "fco_1",
  call_id: "call_1",
  output: "rain",
  status: "completed",
  ...more,
});
const numbered = (type, number, more) => ({
  ...{ type, response_id: RESPONSE, sequence_number: number, fence: 1, ...more },
});
const added = (number, item) => numbered("response.output_item.added", number, { output_index: 0, item });
const ended = (number, item) => numbered("response.output_item.done", number, { output_index: 0, item });
const part = (number, text) =>
  numbered("response.function_call_arguments.delta", number, { item_id: "fc_1", delta: text });
const whole = (number, text) =>
  numbered("response.function_call_arguments.done", number, { item_id: "fc_1", arguments: text });

/** An answer that has begun, and what it holds after these frames. */
function answered(...frames) {
  const { run, message } = newRun();
  run.receive(inProgress());
  const outcomes = frames.map((frame) => run.receive(frame));
  return { run, message, outcomes };
}

test("an answer without tool calls holds none", () => {
  assert.equal(answered(delta(3, 0, "Hi")).message.toolCalls, null);
});

test("a call comes, its arguments grow, and its output makes it done", () => {
  const { run, message, outcomes } = answered(added(3, call()), part(4, '{"a":'), part(5, "1}"));
  const [held] = message.toolCalls;
  assert.deepEqual(outcomes, ["applied", "applied", "applied"]);
  assert.deepEqual([held.name, held.arguments, held.output], ["weather", '{"a":1}', null]);
  assert.equal(stateOf(held, true), "writing");
  run.receive(whole(6, '{"a": 1}'));
  run.receive(ended(7, call({ arguments: '{"a": 1}', status: "completed" })));
  assert.equal(stateOf(held, true), "waiting");
  run.receive(added(8, output()));
  assert.deepEqual([held.arguments, held.output], ['{"a": 1}', "rain"]);
  assert.equal(stateOf(held, true), "done");
});

test("tool calls are entries of the log like others, and text goes on after them", () => {
  const { message, outcomes, run } = answered(delta(3, 0, "Let me see. "), added(4, call()), delta(5, 12, "So."));
  assert.deepEqual(outcomes, ["applied", "applied", "applied"]);
  assert.equal(message.text, "Let me see. So.");
  assert.equal(run.receive(added(4, call({ name: "other" }))), "dropped");
  assert.equal(run.receive(part(9, "late")), "resume");
  assert.equal(message.toolCalls[0].name, "weather");
});

test("a log that is replayed from its beginning leaves each call once, with its arguments once", () => {
  const frames = [added(3, call()), part(4, "{}"), added(5, output())];
  const { run, message } = answered(...frames);
  assert.equal(run.receive(delta(6, 5, "x")), "resume"); // the text is not the server's: all of it again
  for (const frame of [created(), inProgress(), ...frames]) run.receive(frame);
  assert.equal(message.toolCalls.length, 1);
  assert.deepEqual([message.toolCalls[0].arguments, message.toolCalls[0].output], ["{}", "rain"]);
});

test("a snapshot replaces the calls by those that it brings", () => {
  const { run, message } = answered(added(3, call()));
  run.receive(snapshot(7, "So.", { output: [call({ id: "fc_2", call_id: "call_2", arguments: "{}" })] }));
  assert.deepEqual(message.toolCalls.map(({ id }) => id), ["fc_2"]);
  run.receive(snapshot(8, "So."));
  assert.equal(message.toolCalls, null);
});

test("each output finds its own call", () => {
  const other = call({ id: "fc_2", call_id: "call_2", name: "clock" });
  const { message } = answered(added(3, call()), added(4, other), added(5, output({ call_id: "call_2", output: "noon" })));
  assert.deepEqual(message.toolCalls.map((one) => one.output), [null, "noon"]);
});

test("a call that is none, and one that was cut short, are two things", () => {
  const state = (status) => stateOf(toolCallsOf([call({ status })])[0], true);
  assert.deepEqual([state("failed"), state("incomplete")], ["invalid", "cut"]);
  const { run, message } = answered(added(3, call()));
  run.receive(done(4, 0, { status: "cancelled", reason: "client_cancelled" }));
  assert.equal(stateOf(message.toolCalls[0], message.streaming), "cut");
});

const ran = (status, more = {}) => output({ output: "", server_label: "clock", status, ...more });

test("a tool of the server's waits for a word, runs, and has an outcome", () => {
  const { run, message } = answered(added(3, call({ arguments: "{}", status: "completed" })));
  const [held] = message.toolCalls;
  const seen = [];
  for (const [number, item] of [
    ran("awaiting_consent", { consent: "once", expires_at: 7 }),
    ran("in_progress"),
    ran("completed", { output: "noon" }),
  ].entries()) {
    run.receive(number < 2 ? added(4 + number, item) : ended(4 + number, item));
    seen.push([stateOf(held, true), held.output, held.run.server, askedCalls(message).length]);
  }
  const before = [null, "clock"];
  assert.deepEqual(seen, [["asked", ...before, 1], ["running", ...before, 0], ["done", "noon", "clock", 0]]);
  assert.equal(typeof held.run.since, "number");
});

test("each way in which a tool has no result differs from the others, and its code is kept", () => {
  const states = ["failed", "denied", "cancelled", "unknown", "of_a_later_version"].map((status) => {
    const [held] = toolCallsOf([call({ status: "completed" }), ran(status, { code: "tool_timeout" })]);
    assert.equal(held.run.code, "tool_timeout");
    return stateOf(held, true);
  });
  assert.deepEqual(states, ["failed", "denied", "stopped", "unknown", "running"]);
});

test("what was seen of a tool that runs tells since when, and a snapshot does not", () => {
  const [held] = toolCallsOf([call({ status: "completed" }), ran("in_progress")]);
  assert.equal(held.run.since, null);
});

test("an answer that has ended has stopped what it still asked for", () => {
  const { run, message } = answered(added(3, call({ status: "completed" })), added(4, ran("awaiting_consent")));
  run.receive(done(5, 0, { status: "cancelled", reason: "client_cancelled" }));
  assert.equal(stateOf(message.toolCalls[0], message.streaming), "stopped");
  assert.deepEqual(askedCalls(message), []);
});

test("the stored message says what became of each call, and what a stop has cut is gone", () => {
  const { run, message } = answered(added(3, call({ status: "completed" })), ended(4, ran("completed", { output: "noon" })));
  run.receive(done(5, 0, { status: "completed", reason: "tool_calls" }));
  const [held] = message.toolCalls;
  const stored = (tool_outputs) =>
    message.update(wire(message.id, "assistant", { tool_calls: [call({ status: "completed" })], tool_outputs }));
  stored([ran("failed", { code: "tool_failed", output: "It failed." })]);
  assert.deepEqual([message.toolCalls[0], stateOf(held, false), held.output], [held, "failed", "It failed."]);
  stored([]);
  assert.deepEqual([held.run, held.output], [null, null]);
});

test("what the answer itself says of a call counts more than the message after it", () => {
  const path = [new Message(called), new Message(results)];
  path[0].update({ ...called, tool_outputs: [ran("denied", { code: "tool_denied", output: "The user said no." })] });
  shownMessages(path, []);
  const [held] = path[0].toolCalls;
  assert.deepEqual([stateOf(held, false, false), held.output], ["denied", "The user said no."]);
});

test("a call stands where it was written, and after all of the text where nobody knows", () => {
  const { run, message } = answered(delta(3, 0, "I look. "), added(4, call()), delta(5, 8, "It rains."));
  const pieces = () => piecesOf(message.text, message.toolCalls, message.text.length);
  const texts = () => pieces().map(({ text, calls }) => [text, calls.length]);
  assert.deepEqual(texts(), [["I look. ", 1], ["It rains.", 0]]);
  run.receive(snapshot(5, message.text, { output: [call()] }));
  assert.deepEqual(texts(), [["I look. ", 1], ["It rains.", 0]]);
  message.update(wire(message.id, "assistant", { tool_calls: [call({ status: "completed" })] }));
  assert.equal(message.toolCalls[0].textOffset, 8);
  const [stored] = toolCallsOf([call()]);
  assert.deepEqual(piecesOf("All.", [stored], 4), [{ text: "All.", calls: [stored] }]);
  const [placed] = toolCallsOf([call({ text_offset: 2 })]);
  assert.deepEqual(piecesOf("A. B.", [placed], 5), [{ text: "A.", calls: [placed] }, { text: " B.", calls: [] }]);
});

test("cards are parted by words alone, and what is not painted yet hides those after it", () => {
  const [one, two, three] = [0, 1, 9].map((at) => ({ ...call(), textOffset: at }));
  assert.deepEqual(piecesOf("\nHi. More", [one, two, three], 9), [
    { text: "", calls: [one, two] },
    { text: "Hi. More", calls: [three] },
  ]);
  assert.deepEqual(piecesOf("\nHi.", [one, two, three], 9), [{ text: "", calls: [one, two] }, { text: "Hi.", calls: [] }]);
  assert.deepEqual(piecesOf("Hi.", [], 3), [{ text: "Hi.", calls: [] }]);
});

test("an output of parts is their text", () => {
  const parts = [{ type: "output_text", text: "a" }, { type: "image" }, { type: "output_text", text: "b" }];
  assert.equal(toolCallsOf([call(), output({ output: parts })])[0].output, "ab");
});

test("items of other kinds, and what belongs to no call, change nothing", () => {
  for (const frame of [
    added(3, { type: "message", id: "m" }),
    added(3, undefined),
    added(3, output({ call_id: "unknown" })),
    part(3, "{"),
    whole(3, "{}"),
  ]) {
    assert.equal(withToolFrame(null, frame), null);
  }
});

test("what is no text is taken for none", () => {
  const [held] = toolCallsOf([call({ name: { toString: 1 }, arguments: 7 }), output({ output: { a: 1 } })]);
  assert.deepEqual([held.name, held.arguments, held.output], ["", "", ""]);
});

test("each change can be seen by its version", () => {
  const { run, message } = answered(added(3, call()));
  const versions = [message.toolCalls[0].version];
  for (const frame of [part(4, "{"), whole(5, "{}"), added(6, output())]) {
    const before = message.version;
    run.receive(frame);
    assert.ok(message.version > before);
    versions.push(message.toolCalls[0].version);
  }
  assert.equal(new Set(versions).size, versions.length);
});

const wire = (id, role, more = {}) => ({
  ...{ id, parent_id: null, role, content: [{ type: "text", text: "" }], status: "completed", text_length: 0, created_at: 1 },
  ...more,
});
const called = wire("a", "assistant", { tool_calls: [call({ arguments: "{}", status: "completed" })] });
const results = wire("b", "tool", { content: [{ type: "text", text: "rain", call_id: "call_1" }], text_length: 4 });

test("a call that waits for its result says so, until something follows", () => {
  const { run, message } = answered(added(3, call()), part(4, "{}"), whole(5, "{}"));
  run.receive(ended(6, call({ arguments: "{}", status: "completed" })));
  run.receive(done(7, 0, { status: "completed", reason: "tool_calls" }));
  const [held] = message.toolCalls;
  assert.equal(stateOf(held, message.streaming), "waiting");
  assert.equal(stateOf(held, message.streaming, false), "ended");
  message.update(wire(message.id, "assistant", { tool_calls: [call({ arguments: "{}", status: "completed" })] }));
  assert.equal(message.toolCalls[0], held);
  message.update(wire(message.id, "assistant")); // a stop has cut it
  assert.equal(message.toolCalls, null);
});

test("what tools gave back stands in the calls, of this branch alone, and is no bubble", () => {
  const path = [new Message(called), new Message(results), new Message(wire("c", "assistant"))];
  assert.deepEqual(shownMessages(path, []).map(({ id }) => id), ["a", "c"]);
  const [held] = path[0].toolCalls;
  assert.deepEqual([held.output, stateOf(held, false, false)], ["rain", "done"]);
  const before = path[0].version;
  shownMessages(path, []);
  assert.equal(path[0].version, before);
  shownMessages([path[0]], []);
  assert.deepEqual([held.output, stateOf(held, false)], [null, "waiting"]);
});
