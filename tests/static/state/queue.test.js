import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "../../../static/js/connection/storage.js";
import { Queue, QueueEdits } from "../../../static/js/state/queue.js";
import { NEVER, NOT_NOW, refusal, RESPONSE, SESSION, watchingChat } from "../frames.js";

const item = (id) => ({ id, idempotency_key: id, input: id, settings: {}, created_at: 1 });

test("the newest revision is shown, in whichever order they come", () => {
  const queue = new Queue();
  queue.take({ revision: 2, paused: false, items: [item("a"), item("b")] });
  queue.take({ revision: 1, paused: false, items: [item("a")] });
  assert.deepEqual(queue.items.map(({ id }) => id), ["a", "b"]);
});

test("a session that is read anew has what is said of it, of any revision", () => {
  const queue = new Queue();
  queue.take({ revision: 7, paused: true, items: [item("a")] });
  queue.replace({ revision: 3, paused: false, items: [item("b")] });
  assert.deepEqual([queue.items[0].id, queue.paused], ["b", false]);
  queue.replace(undefined);
  assert.deepEqual(queue.items, []);
  queue.take({ revision: 0, paused: false, items: [item("c")] });
  assert.equal(queue.items.length, 1);
});

const queueEvent = (offset, revision, items, more = {}) => ({
  type: "queue.updated",
  session_id: SESSION,
  offset,
  queue: { revision, paused: false, items, ...more },
});

test("a message that is to wait is sent again until the server has it", () => {
  const { chat, receive, take } = watchingChat();
  chat.enqueue("And 3+3?");
  const [add] = take();
  assert.deepEqual([add.type, add.session_id, add.input], ["queue.add", SESSION, "And 3+3?"]);
  assert.equal(add.idempotency_key, add.event_id);
  assert.deepEqual(chat.unqueued.map(({ text }) => text), ["And 3+3?"]);
  assert.deepEqual(chat.sendsOf(SESSION), [], "it is no bubble of the conversation");
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type === "queue.add"), [add]);
  receive({ type: "queue.accepted", event_id: add.event_id, session_id: SESSION, status: "waiting" });
  assert.deepEqual(chat.unqueued, []);
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type === "queue.add"), []);
});

test("words that steer name the answer that is being written", () => {
  const { chat, receive, take } = watchingChat();
  chat.steer("In French");
  const [steer] = take();
  assert.deepEqual([steer.type, steer.previous_response_id, steer.input], ["response.steer", RESPONSE, "In French"]);
  receive({ type: "response.steer.accepted", event_id: steer.event_id, status: "waiting", steer: {} });
  assert.deepEqual(chat.unqueued, []);
});

test("a message that the server does not take comes back with its reason", () => {
  const { chat, receive, take, changes } = watchingChat();
  chat.enqueue("One too many");
  const [add] = take();
  receive(refusal({ type: "overloaded_error", code: "queue_full" }, add));
  const { send, error } = changes.find(({ kind }) => kind === "refused");
  assert.deepEqual([send.text, error.code], ["One too many", "queue_full"]);
});

test("the queue follows its events, in the order of the session's log", () => {
  const { chat, receive, take } = watchingChat();
  receive(queueEvent(4, 1, [item("a")]), queueEvent(5, 2, [item("a"), item("b")], { paused: true }));
  assert.deepEqual(chat.current.queue.items.map(({ id }) => id), ["a", "b"]);
  assert.equal(chat.current.queue.paused, true);
  receive(queueEvent(9, 5, []));
  assert.equal(take()[0].type, "session.subscribe", "after a hole the log is asked for");
  assert.equal(chat.current.queue.items.length, 2);
});

test("a change of what waits is kept until it is answered, and one that came too late says nothing", () => {
  const { chat, receive, take, changes } = watchingChat();
  chat.changeQueue("queue.update", { item_id: "a", place: 0 });
  chat.changeQueue("queue.remove", { item_id: "b" });
  const [move, remove] = take();
  assert.deepEqual([move.type, move.item_id, move.place], ["queue.update", "a", 0]);
  receive({ type: "queue.accepted", event_id: move.event_id, session_id: SESSION, status: "waiting" });
  chat.connected();
  assert.deepEqual(take().filter(({ type }) => type.startsWith("queue.")), [remove]);
  changes.length = 0;
  receive(refusal({ type: "not_found_error", code: "item_not_found" }, remove));
  assert.equal(changes.some(({ kind }) => kind === "notice"), false);
  chat.changeQueue("queue.send");
  receive(refusal(NEVER, take()[0]));
  assert.equal(changes.some(({ kind }) => kind === "notice"), true);
});

test("words that are refused for the moment are kept, and go out again under their key", () => {
  const { chat, receive, take, waits, changes } = watchingChat();
  chat.steer("In French");
  const [steer] = take();
  receive(refusal(NOT_NOW, steer));
  assert.equal(changes.some(({ kind }) => kind === "refused"), false);
  waits[0].run();
  assert.deepEqual(take(), [steer]);
});

test("an edit that came too late, or does not fit, comes back with its words", () => {
  const { chat, receive, take, changes } = watchingChat();
  for (const code of ["item_not_found", "queue_full"]) {
    chat.changeQueue("queue.update", { item_id: "a", input: "Other words" });
    receive(refusal({ type: "x", code, ...(code === "queue_full" && { retry_after_ms: 1000 }) }, take()[0]));
    const { text, itemId, error } = changes.findLast(({ kind }) => kind === "returned");
    assert.deepEqual([text, itemId, error.code], ["Other words", "a", code]);
  }
});

test("an edit is kept until the queue shows it, and given back if its message went out before", () => {
  const edits = new QueueEdits(new Store(null));
  const a = item("a");
  edits.keep(SESSION, a, "b");
  assert.equal(edits.textOf(a), "b");
  assert.deepEqual(edits.settle("ses_B", []), []);
  edits.save(a);
  assert.equal(edits.textOf(a), null, "its field is closed");
  assert.deepEqual(edits.settle(SESSION, [a]), []);
  assert.deepEqual(edits.settle(SESSION, [{ ...a, input: "b" }]), []);
  assert.equal(edits.textOf(a), null);
  edits.keep(SESSION, a, "c");
  assert.deepEqual(edits.settle(SESSION, []), ["c"]);
  assert.deepEqual(edits.settle(SESSION, []), []);
});

test("a queue goes on unless it is paused or its first message was refused", () => {
  const queue = new Queue();
  assert.equal(queue.goesOn, false);
  for (const [paused, first, goesOn] of [[false, {}, true], [true, {}, false], [false, { error: {} }, false]]) {
    queue.replace({ revision: 1, paused, items: [{ ...item("a"), ...first }] });
    assert.equal(queue.goesOn, goesOn);
  }
});
