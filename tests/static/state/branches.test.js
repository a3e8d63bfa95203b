import assert from "node:assert/strict";
import { test } from "node:test";

import { shownMessages } from "../../../static/js/state/shown.js";
import {
  assistantMessage,
  created,
  delta,
  done,
  messageEvent,
  RESPONSE,
  SESSION,
  session,
  snapshot,
  subscribed,
  userMessage,
  watchingChat,
} from "../frames.js";

const textOf = (chat) => chat.current.path.at(-1).visibleText;
const idsOf = (chat) => chat.current.path.map(({ id }) => id);
const siblingsOf = (chat, id) => chat.current.siblings(chat.current.find(id));
const headMoves = (offset, head) => ({
  type: "session.updated",
  session_id: SESSION,
  session: session({ revision: offset, head }),
  offset,
  by: "user",
});

/** A chat whose answer has ended: offset 4. */
function answeredChat() {
  const parts = watchingChat();
  parts.receive(
    delta(3, 0, "Four."),
    done(4, 5),
    messageEvent("message.updated", 4, assistantMessage({ status: "completed", text_length: 5 })),
  );
  return parts;
}

test("a message with another parent starts a branch", () => {
  const { chat, receive } = watchingChat();
  receive(done(3, 0), messageEvent("message.created", 4, assistantMessage({ id: "msg_5" })));
  assert.deepEqual(chat.current.path.map(({ id }) => id), ["msg_1", "msg_5"]);
});

test("continuing a message writes on in it", () => {
  const { chat, receive } = watchingChat();
  receive(delta(3, 0, "Once"), done(4, 4, { status: "incomplete", reason: "max_output_tokens" }));
  const message_id = "msg_2";
  receive(
    messageEvent("message.updated", 4, { id: "msg_2", status: "in_progress", response_id: "resp_S" }),
    created({ response: { id: "resp_S", session_id: SESSION, message_id }, idempotency_key: "k9" }),
    delta(2, 4, " upon", { response_id: "resp_S" }),
  );
  assert.equal(textOf(chat), "Once upon");
  assert.equal(chat.activity(), "running");
});

test("a new answer to a question is its old one's sibling, in every tab", () => {
  const { chat, receive } = answeredChat();
  receive(messageEvent("message.created", 5, assistantMessage({ id: "msg_5", response_id: "resp_S" })));
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_5"]);
  assert.deepEqual(siblingsOf(chat, "msg_5"), ["msg_2", "msg_5"]);
  assert.deepEqual(siblingsOf(chat, "msg_1"), ["msg_1"]);
});

test("an edited first question stands beside the old one", () => {
  const { chat, receive } = answeredChat();
  receive(messageEvent("message.created", 5, userMessage({ id: "msg_5" })));
  assert.deepEqual(idsOf(chat), ["msg_5"]);
  assert.deepEqual(siblingsOf(chat, "msg_5"), ["msg_1", "msg_5"]);
});

test("what the server says of siblings counts before what was seen", () => {
  const { chat, receive, take } = answeredChat();
  receive(headMoves(5, "msg_9"));
  assert.equal(take("session.subscribe")[0].after, undefined);
  const other = assistantMessage({ id: "msg_9", status: "completed", sibling_ids: ["msg_2", "msg_7", "msg_9"] });
  receive(
    subscribed({
      offset: 5,
      snapshot: { session: session({ head: "msg_9" }), messages: [userMessage(), other], has_more: false },
    }),
  );
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_9"]);
  assert.deepEqual(siblingsOf(chat, "msg_9"), ["msg_2", "msg_7", "msg_9"]);
});

test("a head that another client moves to another branch is read anew", () => {
  const { chat, receive, take } = answeredChat();
  receive(headMoves(5, "msg_9"));
  assert.deepEqual(take().map(({ type, after }) => [type, after]), [["session.subscribe", undefined]]);
  assert.equal(chat.current.state, "joining");
});

test("a head that moves back along the branch cuts it there", () => {
  const { chat, receive, take } = answeredChat();
  receive(headMoves(5, "msg_1"));
  assert.deepEqual(idsOf(chat), ["msg_1"]);
  assert.deepEqual(take(), []);
});

test("a rename changes nothing of the branch", () => {
  const { chat, receive, take } = answeredChat();
  receive(headMoves(5, "msg_2"));
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_2"]);
  assert.deepEqual(take(), []);
});

test("a message after one that is not on screen has its branch read anew", () => {
  const { chat, receive, take } = answeredChat();
  receive(messageEvent("message.created", 5, userMessage({ id: "msg_8", parent_id: "msg_7" })));
  assert.deepEqual(take().map(({ type, after }) => [type, after]), [["session.subscribe", undefined]]);
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_2"]);
});

test("an answer that goes on in the middle of the branch ends the branch there", () => {
  const { chat, receive } = answeredChat();
  receive(
    messageEvent("message.created", 5, userMessage({ id: "msg_3", parent_id: "msg_2" })),
    messageEvent("message.updated", 6, assistantMessage({ response_id: "resp_S" })),
  );
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_2"]);
});

test("an answer that goes on in another branch has that branch read anew", () => {
  const { receive, take } = answeredChat();
  receive(messageEvent("message.updated", 5, assistantMessage({ id: "msg_9", response_id: "resp_S" })));
  assert.deepEqual(take().map(({ type, after }) => [type, after]), [["session.subscribe", undefined]]);
});

test("an answer that is being written in another branch can still be stopped, and ends", () => {
  const { chat, receive, take } = watchingChat();
  const other = assistantMessage({ id: "msg_9", status: "completed", response_id: "resp_Q" });
  receive(headMoves(4, "msg_9"));
  receive(
    subscribed({
      offset: 4,
      snapshot: { session: session({ head: "msg_9" }), messages: [userMessage(), other], has_more: false },
      active_responses: [RESPONSE],
    }),
    snapshot(5, "Half an ans"),
  );
  assert.equal(chat.activity(), "running");
  take();
  chat.stop(null);
  assert.equal(take("stop")[0].response_id, RESPONSE);
  receive(
    done(6, 4, { status: "cancelled" }),
    messageEvent("message.updated", 5, assistantMessage({ status: "interrupted", text_length: 4 })),
  );
  assert.equal(chat.activity(), "idle");
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_9"]);
});

test("asking again, going on and switching name their message", () => {
  const { chat, receive, take } = answeredChat();
  chat.ask({ regenerate_of: "msg_2", settings: { temperature: 0 } });
  const [again] = take();
  assert.deepEqual(
    [again.type, again.regenerate_of, again.settings, "input" in again],
    ["response.create", "msg_2", { temperature: 0 }, false],
  );
  const response = { id: "resp_S", session_id: SESSION, message_id: "msg_5", parent_id: "msg_1" };
  receive(
    messageEvent("message.created", 5, assistantMessage({ id: "msg_5", response_id: "resp_S" })),
    created({ response, idempotency_key: again.idempotency_key }),
    done(2, 0, { response: { ...response, status: "cancelled", text_length: 0 } }),
  );
  chat.ask({ continue_of: "msg_5" });
  assert.equal(take()[0].continue_of, "msg_5");
  chat.switchTo("msg_2");
  const [{ type, branch }] = take();
  assert.deepEqual([type, branch], ["session.update", "msg_2"]);
});

test("an edited question is shown in the place of the old one until the server has it", () => {
  const { chat, receive, take } = answeredChat();
  chat.ask({ input: "3+3?", parent_id: null });
  const shown = () => shownMessages(chat.current.path, chat.sendsOf(SESSION)).map(({ text }) => text);
  assert.deepEqual(shown(), ["3+3?"]);
  const [{ parent_id, input }] = take();
  assert.deepEqual([parent_id, input], [null, "3+3?"]);
  const content = [{ type: "text", text: "3+3?" }];
  receive(messageEvent("message.created", 5, userMessage({ id: "msg_5", content })));
  assert.deepEqual(shown(), ["3+3?"]);
});

test("a question that goes on after a message follows those before it", () => {
  const { chat } = answeredChat();
  chat.ask({ input: "And 3+3?", parent_id: "msg_2" });
  chat.ask({ regenerate_of: "msg_2" });
  const shown = shownMessages(chat.current.path, chat.sendsOf(SESSION));
  assert.deepEqual(shown.map(({ text }) => text), ["2+2?", "Four.", "And 3+3?"]);
});

test("an answer goes on in its message after its branch was left and is shown again", () => {
  const { chat, receive } = watchingChat();
  const other = assistantMessage({ id: "msg_9", status: "completed", response_id: "resp_Q" });
  const snapshotOf = (offset, ...messages) =>
    subscribed({
      offset,
      snapshot: { session: session({ head: messages.at(-1).id }), messages, has_more: false },
      active_responses: [RESPONSE],
    });
  receive(delta(3, 0, "Half"), headMoves(4, "msg_9"), snapshotOf(4, userMessage(), other), snapshot(3, "Half"));
  receive(headMoves(5, "msg_2"), snapshotOf(5, userMessage(), assistantMessage()), snapshot(3, "Half"));
  receive(delta(4, 4, " an answer"));
  assert.equal(textOf(chat), "Half an answer");
  assert.equal(chat.current.activeRun.message, chat.current.path.at(-1));
});

test("a page that opens while another branch is written shows its own, and can stop the other", () => {
  const { chat, receive, take } = watchingChat();
  chat.open("ses_B");
  take();
  const mine = assistantMessage({ id: "msg_9", status: "completed", response_id: "resp_Q" });
  receive({
    ...subscribed({ offset: 4, active_responses: ["resp_B"] }),
    session_id: "ses_B",
    snapshot: { session: { ...session(), id: "ses_B", head: "msg_9" }, messages: [userMessage(), mine], has_more: false },
  });
  receive({ ...snapshot(9, "Elsewhere"), response_id: "resp_B" });
  assert.equal(chat.activity(), "running");
  chat.stop(null);
  assert.equal(take("stop")[0].response_id, "resp_B");
  const response = { id: "resp_B", session_id: "ses_B", message_id: "msg_5", parent_id: "msg_1" };
  receive(done(10, 9, { response: { ...response, status: "cancelled", text_length: 9 } }));
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_9"]);
  assert.equal(chat.activity(), "idle");
});

test("older messages that come after a switch are those of another branch", () => {
  const { chat } = answeredChat();
  chat.earlier(SESSION, [userMessage({ id: "msg_0" })], false, "msg_7");
  assert.deepEqual(idsOf(chat), ["msg_1", "msg_2"]);
  chat.earlier(SESSION, [userMessage({ id: "msg_0" })], false, "msg_1");
  assert.deepEqual(idsOf(chat), ["msg_0", "msg_1", "msg_2"]);
});
