import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "../../../static/js/connection/storage.js";
import {
  assistantMessage,
  created,
  delta,
  done,
  inProgress,
  messageEvent,
  newChat,
  NOT_NOW,
  refusal,
  RESPONSE,
  SESSION,
  session,
  snapshot,
  subscribed,
  userMessage,
  watchingChat,
} from "../frames.js";

const textOf = (chat) => chat.current.path.at(-1).visibleText;

test("the conversation of the protocol's example, from a new chat to its end", () => {
  const { chat, receive, take, changes } = newChat();
  chat.say("2+2?");
  const [create] = take();
  assert.equal(create.type, "session.create");
  receive({
    type: "session.created",
    event_id: create.event_id,
    session: session(),
    epoch: "Zr8",
    offset: 1,
    replayed: false,
  });
  assert.ok(changes.some(({ kind, sessionId }) => kind === "opened" && sessionId === SESSION));
  const [ask] = take();
  assert.equal(ask.type, "response.create");
  assert.equal(ask.input, "2+2?");
  assert.equal(chat.activity(), "sending");
  receive(
    messageEvent("message.created", 2, userMessage()),
    messageEvent("message.created", 3, assistantMessage()),
    created({ event_id: ask.event_id, idempotency_key: ask.idempotency_key }),
    inProgress(),
    delta(3, 0, "Two"),
    delta([4, 6], 3, " plus two is four."),
  );
  assert.equal(chat.activity(), "running");
  receive(
    done(7, 21),
    messageEvent("message.updated", 4, assistantMessage({ status: "completed", text_length: 21 })),
  );
  assert.equal(textOf(chat), "Two plus two is four.");
  assert.equal(chat.activity(), "idle");
  assert.deepEqual(chat.current.path.map((message) => message.role), ["user", "assistant"]);
  assert.equal(chat.current.offset, 4);
  assert.deepEqual(take(), []);
});

test("a gap in an answer sends response.resume once", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta(3, 0, "a"), delta(6, 3, "d"), delta(7, 4, "e"));
  assert.deepEqual(take().map(({ event_id: _, ...frame }) => frame), [
    { type: "response.resume", response_id: RESPONSE, fence: 1, after_sequence_number: 3 },
  ]);
  receive(delta([4, 7], 1, "bcde"));
  assert.equal(textOf(chat), "abcde");
  assert.deepEqual(chat.stats, { applied: 4, dropped: 1, resumed: 1, replaced: 0 });
});

test("a hole in the session log subscribes again from the last good position", () => {
  const { chat, receive, take } = watchingChat();
  receive(messageEvent("message.created", 6, userMessage({ id: "msg_9", parent_id: "msg_8" })));
  const [frame] = take();
  assert.equal(frame.type, "session.subscribe");
  assert.deepEqual(frame.after, { epoch: "Zr8", offset: 3 });
  assert.deepEqual(frame.responses, [{ response_id: RESPONSE, fence: 1, after_sequence_number: 2 }]);
  assert.equal(chat.current.path.length, 2);
  receive(
    subscribed({ recovered: true, offset: 6 }),
    messageEvent("message.updated", 4, assistantMessage()),
    messageEvent("message.created", 5, userMessage({ id: "msg_8", parent_id: "msg_2" })),
    messageEvent("message.created", 6, userMessage({ id: "msg_9", parent_id: "msg_8" })),
  );
  assert.deepEqual(chat.current.path.map(({ id }) => id), ["msg_1", "msg_2", "msg_8", "msg_9"]);
  assert.deepEqual(take(), []);
});

test("session events before the answer to a subscribe are left to that answer", () => {
  const { chat, receive, take } = newChat();
  chat.open(SESSION);
  receive(messageEvent("message.created", 3, userMessage()));
  receive(
    subscribed({ offset: 3, snapshot: { session: session(), messages: [userMessage()], has_more: false } }),
    messageEvent("message.created", 3, userMessage()),
  );
  assert.equal(chat.current.path.length, 1);
  assert.equal(take("session.subscribe").length, 1);
});

test("a reconnect resumes session and answer from memory", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta([3, 57], 0, "so far"));
  chat.connected();
  const [frame] = take();
  assert.deepEqual(frame.after, { epoch: "Zr8", offset: 3 });
  assert.deepEqual(frame.responses, [{ response_id: RESPONSE, fence: 1, after_sequence_number: 57 }]);
  receive(
    subscribed({ recovered: true, active_responses: [RESPONSE] }),
    delta([58, 66], 6, " and nine events"),
  );
  assert.equal(textOf(chat), "so far and nine events");
});

test("a reconnect in the middle of a resume may ask again", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta(5, 2, "c"));
  chat.connected();
  receive(subscribed({ recovered: true }), delta(6, 3, "d"));
  assert.equal(take("response.resume").length, 2);
});

test("after the owner died its answer is replaced and goes on under the new fence", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta([3, 57], 0, "a few events ahead of the log"));
  chat.connected();
  receive(
    subscribed({ recovered: true, active_responses: [RESPONSE] }),
    snapshot(55, "a few events ahead", { fence: 2 }),
    delta(56, 18, " again", { fence: 2 }),
  );
  assert.equal(textOf(chat), "a few events ahead again");
  assert.equal(chat.stats.replaced, 1);
  chat.connected();
  assert.deepEqual(take().at(-1).responses[0], {
    response_id: RESPONSE,
    fence: 2,
    after_sequence_number: 56,
  });
});

test("a reload in mid-answer gets messages, then a snapshot, then the rest", () => {
  const { chat, receive } = newChat();
  chat.open(SESSION);
  const messages = [userMessage(), assistantMessage()];
  receive(
    subscribed({
      active_responses: [RESPONSE],
      snapshot: { session: session(), messages, has_more: false },
    }),
    snapshot(12, "The first ten"),
    delta(13, 13, " primes"),
  );
  assert.equal(textOf(chat), "The first ten primes");
  assert.equal(chat.activity(), "running");
});

test("a reload may also be answered with a replay from the start", () => {
  const { chat, receive } = newChat();
  chat.open(SESSION);
  const partial = assistantMessage({ content: [{ type: "text", text: "The fir" }] });
  receive(
    subscribed({ snapshot: { session: session(), messages: [userMessage(), partial], has_more: false } }),
    created({ replayed: true }),
    inProgress(),
    delta([3, 9], 0, "The first ten"),
  );
  assert.equal(textOf(chat), "The first ten");
});

test("a snapshot of the session keeps the text of an answer that goes on", () => {
  const { chat, receive } = watchingChat();
  receive(delta([3, 9], 0, "held"));
  chat.connected();
  const messages = [userMessage(), assistantMessage()];
  receive(
    subscribed({ epoch: "new", offset: 40, snapshot: { session: session(), messages, has_more: false } }),
  );
  assert.equal(textOf(chat), "held");
  receive(delta(10, 4, " and on"));
  assert.equal(textOf(chat), "held and on");
  assert.equal(chat.current.epoch, "new");
  assert.equal(chat.current.offset, 40);
});

test("an answer that ended during a long absence is taken from its message", () => {
  const { chat, receive } = watchingChat();
  receive(delta([3, 9], 0, "held"));
  chat.connected();
  const content = [{ type: "text", text: "held and finished" }];
  const ended = assistantMessage({ status: "completed", content, text_length: 17 });
  receive(
    subscribed({
      epoch: "new",
      offset: 40,
      snapshot: { session: session(), messages: [userMessage(), ended], has_more: false },
    }),
  );
  assert.equal(textOf(chat), "held and finished");
  assert.equal(chat.activity(), "idle");
});

test("an answer whose log is gone but whose message event came is settled by that event", () => {
  const { chat, receive } = watchingChat();
  receive(delta([3, 9], 0, "held"));
  chat.connected();
  const content = [{ type: "text", text: "held and finished" }];
  receive(
    subscribed({ recovered: true, offset: 4 }),
    messageEvent("message.updated", 4, assistantMessage({ status: "completed", content, text_length: 17 })),
  );
  assert.equal(textOf(chat), "held and finished");
  assert.equal(chat.activity(), "idle");
});

test("a long stored text that no frame carried is fetched", () => {
  const { chat, receive, refetched } = watchingChat();
  receive(delta([3, 9], 0, "held"));
  chat.connected();
  const { content: _, ...omitted } = assistantMessage({ status: "completed", text_length: 9000 });
  receive(
    subscribed({ recovered: true, offset: 4 }),
    messageEvent("message.updated", 4, { ...omitted, content_omitted: true }),
  );
  assert.deepEqual(refetched, [SESSION]);
  const text = "x".repeat(9000);
  chat.settle(SESSION, [{ ...omitted, content: [{ type: "text", text }] }]);
  assert.equal(textOf(chat), text);
  assert.equal(chat.activity(), "idle");
});

test("a stop freezes the text, names what was seen, and settles at done", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta([3, 40], 0, "one two"), delta(41, 7, " three"), delta([42, 43], 13, " four"));
  chat.stop({ length: 13, number: 41 });
  const [stop] = take();
  assert.equal(stop.type, "stop");
  assert.equal(stop.response_id, RESPONSE);
  assert.equal(stop.seen_sequence_number, 41);
  assert.equal(chat.activity(), "stopping");
  receive(delta(44, 18, " five"));
  assert.equal(textOf(chat), "one two three");
  receive(
    { type: "response.cancelling", response_id: RESPONSE, by: "user", confirmed: false, durable: true },
    done(45, 13, { status: "cancelled", reason: "client_cancelled" }),
  );
  assert.equal(textOf(chat), "one two three");
  assert.equal(chat.current.path.at(-1).status, "interrupted");
  assert.equal(chat.activity(), "idle");
});

test("stopping twice sends one stop", () => {
  const { chat, take } = watchingChat();
  chat.stop({ length: 0, number: 2 });
  chat.stop({ length: 0, number: 2 });
  assert.equal(take("stop").length, 1);
});

test("another tab's stop cuts our text at text_length", () => {
  const { chat, receive } = watchingChat();
  receive(
    delta([3, 43], 0, "one two three four"),
    { type: "response.cancelling", response_id: RESPONSE, by: "user", confirmed: false, durable: true },
  );
  assert.equal(chat.activity(), "stopping");
  assert.equal(textOf(chat), "one two three four");
  receive(done(44, 13, { status: "cancelled", reason: "client_cancelled" }));
  assert.equal(textOf(chat), "one two three");
});

test("a stop before response.created names the session and the key", () => {
  const { chat, receive, take } = watchingChat();
  receive(done(3, 0));
  chat.say("again");
  const [ask] = take();
  chat.stop(null);
  assert.deepEqual(take(), [
    { type: "stop", session_id: SESSION, idempotency_key: ask.idempotency_key },
  ]);
  assert.equal(chat.activity(), "stopping");
  const second = { id: "resp_S", session_id: SESSION, message_id: "msg_4", parent_id: "msg_3" };
  receive(
    { type: "response.cancelling", response_id: null, by: "user", durable: true },
    messageEvent("message.created", 4, userMessage({ id: "msg_3", parent_id: "msg_2" })),
    messageEvent("message.created", 5, assistantMessage({ id: "msg_4", parent_id: "msg_3", response_id: "resp_S" })),
    created({ response: second, idempotency_key: ask.idempotency_key }),
    inProgress({ response_id: "resp_S" }),
    delta(3, 0, "too late", { response_id: "resp_S" }),
  );
  assert.equal(textOf(chat), "");
  assert.equal(chat.activity(), "stopping");
});

test("unanswered messages and stops are sent again, in order, after the subscribe", () => {
  const { chat, receive, take } = watchingChat();
  chat.stop({ length: 0, number: 2 });
  receive(done(3, 0, { status: "cancelled" }));
  chat.say("next");
  const [, ask] = take();
  chat.stop(null);
  take();
  chat.connected();
  const again = take();
  assert.deepEqual(again.map(({ type }) => type), ["session.subscribe", "response.create", "stop"]);
  assert.deepEqual(again[1], ask);
});

test("a stop is sent again until it is heard", () => {
  const { chat, receive, take } = watchingChat();
  chat.stop({ length: 0, number: 2 });
  chat.connected();
  assert.equal(take("stop").length, 2);
  receive({ type: "response.cancelling", response_id: RESPONSE, by: "user", durable: true });
  chat.connected();
  assert.equal(take("stop").length, 0);
});

test("a message survives the tab and is answered once", () => {
  const store = new Store(null);
  const first = watchingChat(store);
  first.receive(done(3, 0));
  first.chat.say("remember me");
  const [ask] = first.take();
  const second = newChat(store);
  second.chat.connected();
  assert.deepEqual(second.take("response.create"), [ask]);
  second.receive(created({ idempotency_key: ask.idempotency_key, replayed: true }));
  assert.equal(newChat(store).outbox.sends.size, 0);
});

test("a new chat whose session.create was lost is created with the same key", () => {
  const store = new Store(null);
  const first = newChat(store);
  first.chat.say("hello");
  const [create] = first.take();
  const second = newChat(store);
  second.chat.connected();
  assert.deepEqual(second.take(), [create]);
});

test("a message waiting for a session that is not on screen has that session watched, and left", () => {
  const { chat, receive, take } = watchingChat();
  receive(done(3, 0));
  chat.say("and then?");
  chat.open("ses_B");
  const [ask] = take("response.create");
  chat.connected();
  const again = take();
  assert.deepEqual(
    again.map(({ type, session_id }) => [type, session_id]),
    [
      ["session.subscribe", "ses_B"],
      ["session.subscribe", SESSION],
      ["response.create", SESSION],
    ],
  );
  receive(
    subscribed({ recovered: true }),
    messageEvent("message.created", 4, userMessage({ id: "msg_3", parent_id: "msg_2" })),
    created({
      response: { id: "resp_S", session_id: SESSION, message_id: "msg_4", parent_id: "msg_3" },
      idempotency_key: ask.idempotency_key,
    }),
  );
  assert.deepEqual(take().map(({ type, session_id }) => [type, session_id]), [
    ["session.unsubscribe", SESSION],
  ]);
});

test("a stop of an answer nobody knows any more leads to the stored message", () => {
  const { chat, receive, take, refetched } = watchingChat();
  chat.stop(null);
  const [{ event_id }] = take("stop");
  receive({ type: "error", error: { type: "not_found_error", code: "response_not_found", event_id } });
  assert.deepEqual(refetched, [SESSION]);
});

test("a late event of an answer in progress does not take its text back", () => {
  const { chat, receive } = watchingChat();
  receive(delta(3, 0, "held"));
  const content = [{ type: "text", text: "" }];
  receive(messageEvent("message.updated", 4, assistantMessage({ content, text_length: 0 })));
  assert.equal(textOf(chat), "held");
});

test("the optimistic bubble becomes the server's message in place", () => {
  const { chat, receive, take } = watchingChat();
  receive(done(3, 0));
  chat.say("and now?");
  const [ask] = take();
  const content = [{ type: "text", text: "and now?" }];
  receive(messageEvent("message.created", 4, userMessage({ id: "msg_3", parent_id: "msg_2", content })));
  assert.equal(chat.current.path.at(-1).key, ask.idempotency_key);
});

test("a long message whose content was left out keeps the text that was typed", () => {
  const { chat, receive, refetched } = watchingChat();
  receive(done(3, 0));
  const text = "x".repeat(3000);
  chat.say(text);
  const { content: _, ...wire } = userMessage({ id: "msg_3", parent_id: "msg_2", text_length: 3000 });
  receive(messageEvent("message.created", 4, { ...wire, content_omitted: true }));
  assert.equal(textOf(chat), text);
  assert.deepEqual(refetched, []);
});

test("a refused message is handed back", () => {
  const { chat, receive, take, changes } = watchingChat();
  chat.say("too soon");
  const [ask] = take();
  const error = { type: "conflict_error", code: "response_in_progress", event_id: ask.event_id };
  receive({ type: "error", error });
  const refused = changes.find(({ kind }) => kind === "refused");
  assert.equal(refused.send.text, "too soon");
  assert.equal(chat.outbox.sends.size, 0);
});

test("another chat is shown from memory and resumed where it was left", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta(3, 0, "a"));
  chat.open("ses_B");
  assert.deepEqual(take().map(({ type }) => type), ["session.unsubscribe", "session.subscribe"]);
  receive(delta(4, 1, "stray"));
  chat.open(SESSION);
  assert.equal(textOf(chat), "a");
  assert.deepEqual(take("session.subscribe")[0].responses, [
    { response_id: RESPONSE, fence: 1, after_sequence_number: 3 },
  ]);
});

test("a stop that could not be taken is sent again, unless the answer ends first", () => {
  const { chat, receive, take, waits } = watchingChat();
  chat.stop({ length: 0, number: 2 });
  const [stop] = take();
  receive(refusal(NOT_NOW, stop));
  waits[0].run();
  assert.deepEqual(take(), [stop]);
  receive(refusal(NOT_NOW, stop), done(3, 0));
  waits[1].run();
  assert.deepEqual(take(), []);
});

test("a stop that is refused when the answer has ended already needs no word", () => {
  const { chat, receive, take, changes } = watchingChat();
  chat.stop({ length: 0, number: 2 });
  const [stop] = take();
  receive(done(3, 0), refusal(NOT_NOW, stop));
  assert.deepEqual(changes.filter(({ kind }) => kind === "notice"), []);
});

test("an eviction is no deletion: the chat stays where it is", () => {
  const { chat, receive, changes } = watchingChat();
  receive({ type: "session.evicted", session_id: SESSION, offset: 4, by: "admin", reason: "spam" });
  assert.equal(chat.currentId, SESSION);
  assert.equal(chat.current.offset, 4);
  assert.equal(chat.sessions.size, 1);
  assert.deepEqual(changes.filter(({ kind }) => kind === "gone"), []);
});

test("an eviction closes its chat, which a new connection leaves alone until it is reopened", () => {
  const { chat, receive, take } = watchingChat();
  receive({ type: "session.evicted", session_id: SESSION, offset: 4, by: "admin", reason: "spam" });
  assert.equal(chat.eviction, null);
  chat.evicted();
  assert.equal(chat.eviction.reason, "spam");
  chat.connected();
  assert.deepEqual(take(), []);
  chat.open("ses_B");
  assert.deepEqual(take().map(({ session_id }) => session_id), ["ses_B"]);
  chat.open(SESSION);
  assert.deepEqual(take("session.subscribe"), []);
  chat.reopen();
  assert.deepEqual(take().map(({ type, session_id }) => [type, session_id]), [["session.subscribe", SESSION]]);
  assert.equal(chat.eviction, null);
});

test("an eviction among what was missed closes nothing", () => {
  const { chat, receive } = watchingChat();
  chat.connected();
  receive(
    subscribed({ recovered: true, offset: 4 }),
    { type: "session.evicted", session_id: SESSION, offset: 4, by: "admin", reason: "spam" },
  );
  chat.evicted();
  assert.equal(chat.eviction, null);
});

/** A new chat whose first message has been sent to the session made for it. */
function firstMessage() {
  const parts = newChat();
  parts.chat.say("2+2?");
  const [{ event_id }] = parts.take();
  parts.receive({ type: "session.created", event_id, session: session(), epoch: "e", offset: 1, replayed: false });
  return { ...parts, frame: parts.take()[0] };
}

test("a session made for a message that is refused for good is deleted, and the message handed back", () => {
  const { chat, receive, take, changes, frame } = firstMessage();
  receive(refusal({ type: "invalid_request_error", code: "context_length_exceeded" }, frame));
  assert.deepEqual(take().map(({ type, session_id }) => [type, session_id]), [["session.delete", SESSION]]);
  assert.equal(chat.currentId, null);
  assert.deepEqual(chat.sessions.sorted, []);
  const [{ wasOnScreen, isRefused }] = changes.filter(({ kind }) => kind === "gone");
  assert.deepEqual([wasOnScreen, isRefused], [true, true]);
  const { send } = changes.at(-1);
  assert.deepEqual([send.text, send.sessionId], ["2+2?", null]);
});

for (const code of ["store_unavailable", "not_subscribed", "session_locked", "internal"]) {
  test(`a session stays when its first message is refused as ${code}`, () => {
    const { chat, receive, take, changes, frame } = firstMessage();
    receive(refusal({ code }, frame));
    assert.deepEqual(take(), []);
    assert.equal(chat.currentId, SESSION);
    assert.equal(changes.at(-1).send.sessionId, SESSION);
  });
}

test("a session that could not be read since the reconnect stays, even if its first message is refused", () => {
  const { chat, receive, take, frame } = firstMessage();
  chat.connected();
  const [subscribe] = take();
  receive(refusal(NOT_NOW, subscribe), refusal({ code: "context_length_exceeded" }, frame));
  assert.deepEqual(take("session.delete"), []);
  assert.equal(chat.currentId, SESSION);
});

test("a session that has messages stays when one more is refused", () => {
  const { chat, receive, take } = watchingChat();
  receive(done(3, 0));
  chat.say("a very long one");
  receive(refusal({ type: "invalid_request_error", code: "context_length_exceeded" }, take()[0]));
  assert.deepEqual(take(), []);
  assert.equal(chat.currentId, SESSION);
});

test("the end of an answer and the return of the store are announced", () => {
  const { receive, changes } = newChat();
  const announced = () => changes.splice(0).filter(({ kind }) => kind === "ended" || kind === "restored");
  receive({ type: "session.activity", session_id: SESSION, active: true });
  receive({ type: "connection.degraded", store: "unavailable" });
  receive({ type: "connection.restored", engine: "ok" });
  assert.deepEqual(announced(), []);
  receive({ type: "session.activity", session_id: SESSION, active: false, status: "completed" });
  assert.deepEqual(announced(), [{ kind: "ended", sessionId: SESSION }]);
  receive({ type: "connection.restored", store: "ok" });
  assert.equal(announced().length, 1);
  receive({ type: "connection.ready" }); // anyone who may connect has been looked up in the store
  assert.equal(announced().length, 1);
});

test("a chat that does not exist is left", () => {
  const { chat, receive, take } = newChat();
  chat.open(SESSION);
  const [{ event_id }] = take();
  receive({ type: "error", error: { type: "not_found_error", code: "session_not_found", event_id } });
  assert.equal(chat.currentId, null);
});

test("a chat that cannot be read now is asked for again without a word, while it is on screen", () => {
  const { chat, receive, take, waits, changes } = newChat();
  chat.open(SESSION);
  const [subscribe] = take();
  receive(refusal(NOT_NOW, subscribe));
  waits[0].run();
  assert.deepEqual(take(), [subscribe]);
  receive(refusal(NOT_NOW, subscribe));
  chat.open(null);
  take();
  waits[1].run();
  assert.deepEqual(take(), []);
  assert.deepEqual(changes.filter(({ kind }) => kind === "notice"), []);
});

test("a chat that cannot be read now is asked for once, however often it was opened or a connection came", () => {
  const { chat, receive, take, waits } = newChat();
  chat.open(SESSION);
  chat.open(null);
  chat.open(SESSION);
  receive(...take("session.subscribe").map((subscribe) => refusal(NOT_NOW, subscribe)));
  for (const { run } of waits.splice(0)) run();
  const again = take();
  assert.equal(again.length, 1);
  receive(refusal(NOT_NOW, again[0]));
  chat.connected();
  assert.equal(take().length, 1);
  waits[0].run();
  assert.deepEqual(take(), []);
});

test("an answer whose log has expired is read from its message", () => {
  const { receive, take, refetched } = watchingChat();
  receive(delta(9, 9, "z"));
  const [{ event_id }] = take();
  receive({ type: "error", error: { type: "not_found_error", code: "response_not_found", event_id } });
  assert.deepEqual(refetched, [SESSION]);
});

test("health is what is not well", () => {
  const { chat, receive } = newChat();
  receive({ type: "connection.degraded", store: "unavailable" });
  receive({ type: "connection.degraded", engine: "stalled" });
  assert.deepEqual(chat.degraded, { store: "unavailable", engine: "stalled" });
  receive({ type: "connection.restored", store: "ok" });
  assert.deepEqual(chat.degraded, { engine: "stalled" });
});

test("an answer goes on when the engine was away", () => {
  const { chat, receive, take } = watchingChat();
  receive(delta(3, 0, "before"));
  take();
  receive({ type: "connection.degraded", engine: "unavailable" });
  assert.equal(chat.activity(), "running");
  receive({ type: "connection.restored", engine: "ok" }, delta(4, 6, " and after"));
  assert.equal(textOf(chat), "before and after");
  assert.deepEqual(chat.degraded, {});
  assert.deepEqual(take(), []);
});

test("unknown frames and frames of unknown responses change nothing", () => {
  const { chat, receive, take } = watchingChat();
  receive({ type: "weather.changed" }, delta(3, 0, "x", { response_id: "resp_foreign" }));
  assert.equal(textOf(chat), "");
  assert.deepEqual(take(), []);
});

test("any cut of the connection leaves exactly the server's text", () => {
  const words = Array.from({ length: 40 }, (_, index) => `w${index} `);
  const full = words.join("");
  const offsets = words.map((_, index) => words.slice(0, index).join("").length);
  const frameAt = (number) => delta(number, offsets[number - 3], words[number - 3]);
  for (let cut = 3; cut <= 42; cut += 1) {
    const { chat, receive, take } = watchingChat();
    for (let number = 3; number < cut; number += 1) receive(frameAt(number));
    chat.connected(); // frames from `cut` on were lost; some more were produced meanwhile
    const [{ responses }] = take("session.subscribe");
    const after = responses[0].after_sequence_number;
    assert.equal(after, cut - 1);
    receive(subscribed({ recovered: true, active_responses: [RESPONSE] }));
    for (let number = Math.max(3, after - 1); number <= 42; number += 1) receive(frameAt(number));
    receive(done(43, full.length));
    assert.equal(textOf(chat), full);
  }
});
