import assert from "node:assert/strict";
import { test } from "node:test";

import { Outbox } from "../../../static/js/connection/outbox.js";
import { Store } from "../../../static/js/connection/storage.js";

const SESSION = "ses_A";

/** A Storage as a browser has it, with a limit on its length. */
class FakeStorage {
  #items = new Map();

  constructor(limit = Infinity) {
    this.limit = limit;
  }

  get length() {
    return this.#items.size;
  }

  key(index) {
    return [...this.#items.keys()][index];
  }

  getItem(name) {
    return this.#items.get(name) ?? null;
  }

  setItem(name, value) {
    if (value.length > this.limit) throw new Error("QuotaExceededError");
    this.#items.set(name, value);
  }

  removeItem(name) {
    this.#items.delete(name);
  }
}

test("a message is stored before anything is sent, and found by the next page", () => {
  const storage = new FakeStorage();
  const send = new Outbox(new Store(storage)).addSend({ input: "hello" }, SESSION);
  const [frame] = new Outbox(new Store(storage)).unanswered();
  assert.deepEqual(frame, {
    type: "response.create",
    event_id: send.key,
    session_id: SESSION,
    idempotency_key: send.key,
    input: "hello",
  });
});

test("keys are what the protocol allows, and never the same", () => {
  const outbox = new Outbox(new Store(null));
  const keys = Array.from({ length: 100 }, () => outbox.addSend({ input: "x" }, SESSION).key);
  assert.equal(new Set(keys).size, 100);
  for (const key of keys) assert.match(key, /^[A-Za-z0-9_-]{1,64}$/);
});

test("two tabs do not overwrite each other's messages", () => {
  const storage = new FakeStorage();
  const first = new Outbox(new Store(storage));
  const second = new Outbox(new Store(storage));
  first.addSend({ input: "one" }, SESSION);
  const { key } = second.addSend({ input: "two" }, SESSION);
  second.removeSend(key);
  const left = new Outbox(new Store(storage)).unanswered();
  assert.deepEqual(left.map(({ input }) => input), ["one"]);
});

test("a message of a new chat waits for its session", () => {
  const outbox = new Outbox(new Store(null));
  const send = outbox.addSend({ input: "hello" }, null);
  assert.deepEqual(outbox.unanswered(), [
    { type: "session.create", event_id: send.key, idempotency_key: send.sessionKey },
  ]);
  outbox.updateSend(send, { sessionId: SESSION });
  assert.deepEqual(outbox.unanswered().map(({ type }) => type), ["response.create"]);
});

test("a message stopped before its answer began is followed by its stop", () => {
  const outbox = new Outbox(new Store(null));
  const send = outbox.addSend({ input: "hello" }, SESSION);
  outbox.updateSend(send, { stopped: true });
  const [, stop] = outbox.unanswered();
  assert.deepEqual(stop, { type: "stop", session_id: SESSION, idempotency_key: send.key });
});

test("a frame is forgotten when its answer or its error comes", () => {
  const outbox = new Outbox(new Store(null));
  const update = outbox.addFrame({ type: "session.update", session_id: SESSION, title: "A" });
  const remove = outbox.addFrame({ type: "session.delete", session_id: SESSION });
  outbox.settle({ type: "session.updated", event_id: update.event_id });
  assert.deepEqual(outbox.unanswered(), [remove]);
  outbox.settle({ type: "error", error: { code: "forbidden", event_id: remove.event_id } });
  assert.deepEqual(outbox.unanswered(), []);
});

test("a rename is answered by the session that has that title, a deletion by the deleted session", () => {
  const outbox = new Outbox(new Store(null));
  const first = outbox.addFrame({ type: "session.update", session_id: SESSION, title: "A" });
  const other = outbox.addFrame({ type: "session.update", session_id: "ses_B", title: "B" });
  outbox.settle({ type: "session.updated", session: { id: SESSION, title: "Automatic" } });
  assert.deepEqual(outbox.unanswered(), [first, other]);
  outbox.settle({ type: "session.updated", session: { id: SESSION, title: "A" } });
  assert.deepEqual(outbox.unanswered(), [other]);
  outbox.settle({ type: "session.deleted", session_id: "ses_B" });
  assert.deepEqual(outbox.unanswered(), []);
});

test("a stop is answered by the end of what it stopped, and of nothing else", () => {
  const outbox = new Outbox(new Store(null));
  outbox.addFrame({ type: "stop", response_id: "resp_R" });
  outbox.settle({ type: "response.done", response: { id: "resp_S" } });
  outbox.settle({ type: "response.cancelling", response_id: null });
  assert.equal(outbox.unanswered().length, 1);
  outbox.settle({ type: "response.done", response: { id: "resp_R" } });
  assert.equal(outbox.unanswered().length, 0);
});

test("a full storage loses nothing while the page lives", () => {
  const outbox = new Outbox(new Store(new FakeStorage(10)));
  outbox.addSend({ input: "a long message that does not fit" }, SESSION);
  assert.equal(outbox.unanswered().length, 1);
});

test("unreadable stored values are ignored", () => {
  const storage = new FakeStorage();
  storage.setItem("parley.unsent.x", "{not json");
  storage.setItem("parley.unsent.y", "7");
  assert.deepEqual(new Outbox(new Store(storage)).unanswered(), []);
});

test("messages and changes are sent again in the order of their first time, also after a reload", () => {
  const store = new Store(null);
  const outbox = new Outbox(store);
  const texts = ["one", "two", "three"];
  outbox.addSend({ input: "zero" }, SESSION);
  outbox.addFrame({ type: "session.update", session_id: SESSION, settings: { temperature: 0 } });
  for (const text of texts) outbox.addSend({ input: text }, SESSION);
  const kinds = outbox.unanswered().map(({ input, settings }) => input ?? settings);
  assert.deepEqual(kinds, ["zero", { temperature: 0 }, ...texts]);
  const later = new Outbox(store).unanswered().map(({ input }) => input);
  assert.deepEqual(later, ["zero", ...texts]);
});

test("a change of the session answers no deletion of it", () => {
  const outbox = new Outbox(new Store(null));
  const deletion = outbox.addFrame({ type: "session.delete", session_id: SESSION });
  outbox.settle({ type: "session.updated", session: { id: SESSION, title: "A", settings: {} } });
  assert.equal(outbox.keeps(deletion), true);
});

test("settings are answered by the session that has them, in any order", () => {
  const outbox = new Outbox(new Store(null));
  const settings = { temperature: 0, seed: 7 };
  const update = outbox.addFrame({ type: "session.update", session_id: SESSION, settings });
  const says = (settings) => outbox.settle({ type: "session.updated", session: { id: SESSION, settings } });
  says({ temperature: 0 });
  assert.equal(outbox.keeps(update), true);
  says({ seed: 7, temperature: 0 });
  assert.equal(outbox.keeps(update), false);
});
