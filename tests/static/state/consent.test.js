/** The words of a user on calls of tools that wait for them. */

import assert from "node:assert/strict";
import { test } from "node:test";

import { created, done, NEVER, NOT_NOW, refusal, RESPONSE, SESSION, watchingChat } from "../frames.js";

const CALL = { type: "function_call", id: "fc_1", call_id: "call_1", name: "clock__now", arguments: "{}", status: "completed" };
const entry = (sequence_number, item) => ({
  ...{ type: "response.output_item.added", response_id: RESPONSE, sequence_number, fence: 1, output_index: 0, item },
});
const run = (status) => ({
  ...{ type: "function_call_output", id: "fco_1", call_id: "call_1", server_label: "clock", output: "", status },
});

/** A chat whose answer asks whether a call may run. */
function asking() {
  const held = watchingChat();
  const from = held.chat.current.activeRun.last;
  held.receive(entry(from + 1, CALL), entry(from + 2, run("awaiting_consent")));
  held.take();
  const { message } = held.chat.current.activeRun;
  return { ...held, message, last: from + 2, say: (decision) => held.chat.consent(message, message.toolCalls[0], decision) };
}

test("a word on a call goes out once, and the card shows it at once", () => {
  const { chat, take, say, message } = asking();
  assert.deepEqual(chat.asked, message.toolCalls);
  const before = message.version;
  say("allow_session");
  say("deny");
  const [sent, ...more] = take();
  assert.deepEqual(more, []);
  assert.deepEqual({ ...sent, event_id: "" }, {
    ...{ type: "tool_call.consent", response_id: RESPONSE, call_id: "call_1", decision: "allow_session", event_id: "" },
  });
  assert.equal(message.toolCalls[0].run.said, "allow_session");
  assert.ok(message.version > before);
});

test("a word that was not heard is sent again by the next connection, until it is accepted", () => {
  const { chat, take, say, receive } = asking();
  say("allow");
  const [sent] = take();
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type === sent.type), [sent]);
  receive({ type: "tool_call.consent.accepted", event_id: sent.event_id, response_id: RESPONSE, call_id: "call_1" });
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type === sent.type), []);
});

test("what becomes of the call settles the word, no matter who said it", () => {
  const { chat, take, say, receive, last } = asking();
  say("allow");
  take();
  receive(entry(last + 1, run("denied")));
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type === "tool_call.consent"), []);
  assert.deepEqual(chat.asked, []);
});

test("a word that is refused gives the question back, and says why", () => {
  const { take, say, receive, message, changes } = asking();
  say("allow");
  receive(refusal(NEVER, take()[0]));
  assert.equal(message.toolCalls[0].run.said, null);
  assert.equal(changes.at(-1).error.code, NEVER.code);
});

test("a word that comes at a bad moment goes out again later", () => {
  const { take, say, receive, message, waits } = asking();
  say("deny");
  const [sent] = take();
  receive(refusal(NOT_NOW, sent));
  assert.equal(message.toolCalls[0].run.said, "deny");
  waits.splice(0).forEach(({ run: goOn }) => goOn());
  assert.deepEqual(take(), [sent]);
});

/** A chat whose answer has ended, and whose call the server has carried out. */
function betweenRounds() {
  const held = asking();
  held.receive(entry(held.last + 1, { ...run("completed"), output: "noon" }));
  held.receive(done(held.last + 2, 0, { status: "completed", reason: "tool_calls" }));
  held.take();
  return held;
}

test("between the rounds of an answer the chat stays busy, until the next one has begun", () => {
  const { chat, receive } = betweenRounds();
  assert.equal(chat.activity(), "running");
  const parent_id = chat.current.path.at(-1).id;
  receive(created({ response: { ...created().response, id: "resp_S", message_id: "msg_9", parent_id } }));
  assert.equal(chat.activity(), "running");
  receive({ ...done(3, 0), response: { ...done(3, 0).response, id: "resp_S" } });
  assert.equal(chat.activity(), "idle");
});

test("a next round that does not begin leaves the chat idle after a moment", () => {
  const { chat, waits, changes } = betweenRounds();
  changes.length = 0;
  waits.splice(0).forEach(({ run: goOn }) => goOn());
  assert.equal(chat.activity(), "idle");
  assert.equal(changes.length, 1);
});

test("a stop between the rounds is for the session", () => {
  const { chat, take } = betweenRounds();
  chat.stop(null);
  assert.deepEqual(take(), [{ type: "stop", session_id: SESSION }]);
  const idle = watchingChat();
  idle.receive(done(3, 0));
  idle.take();
  idle.chat.stop(null);
  assert.deepEqual(idle.take(), []);
});

test("an answer whose calls a client must answer leaves the chat idle", () => {
  const held = watchingChat();
  held.receive(entry(3, CALL), done(4, 0, { status: "completed", reason: "tool_calls" }));
  assert.equal(held.chat.activity(), "idle");
});
