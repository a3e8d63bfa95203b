import assert from "node:assert/strict";
import { test } from "node:test";

import {
  created,
  done,
  NEVER,
  newChat,
  NOT_NOW,
  refusal,
  SESSION,
  session,
  watchingChat,
} from "../frames.js";

test("the sidebar follows created, updated, activity and deleted", () => {
  const { chat, receive, changes } = newChat();
  const second = session({ id: "ses_B", title: "B", updated_at: 2000 });
  receive(
    { type: "session.created", session: session(), epoch: "e", offset: 1, replayed: false },
    { type: "session.created", session: second, epoch: "f", offset: 1, replayed: false },
  );
  const titles = () => chat.sessions.sorted.map(({ session: { title } }) => title);
  assert.deepEqual(titles(), ["B", "A chat"]);
  receive({ type: "session.updated", session: session({ title: "A!", revision: 2, updated_at: 3000 }), offset: 9 });
  assert.deepEqual(titles(), ["A!", "B"]);
  receive({ type: "session.updated", session: session({ title: "old" }), offset: 8 });
  assert.deepEqual(titles(), ["A!", "B"]);
  receive({ type: "session.activity", session_id: "ses_B", active: true });
  assert.equal(chat.sessions.get("ses_B").active, true);
  receive({ type: "session.activity", session_id: "ses_B", active: false, status: "completed" });
  assert.deepEqual([chat.sessions.get("ses_B").active, chat.sessions.get("ses_B").unseen], [false, true]);
  receive({ type: "session.deleted", session_id: "ses_B", offset: 9, by: "user" });
  assert.deepEqual(titles(), ["A!"]);
  assert.ok(changes.some(({ kind, sessionId }) => kind === "gone" && sessionId === "ses_B"));
});

test("deleting the chat on screen in another tab leaves an empty new chat", () => {
  const { chat, receive, changes } = watchingChat();
  receive({ type: "session.deleted", session_id: SESSION, offset: 4, by: "user" });
  assert.equal(chat.currentId, null);
  assert.equal(changes.find(({ kind }) => kind === "gone").wasOnScreen, true);
});

test("a message on its way to a chat that is deleted is handed back", () => {
  const { chat, receive, changes } = watchingChat();
  receive(done(3, 0));
  chat.say("are you there?");
  receive({ type: "session.deleted", session_id: SESSION, offset: 4, by: "user" });
  const refused = changes.find(({ kind }) => kind === "refused");
  assert.equal(refused.send.text, "are you there?");
  assert.equal(chat.outbox.sends.size, 0);
});

/** A chat with SESSION in its list, and the first frame that `act` sent. */
function listing(act) {
  const parts = newChat();
  parts.chat.listed([session()]);
  act(parts.chat);
  return { ...parts, frame: parts.take()[0], titles: () => parts.chat.sessions.sorted.map((e) => e.session.title) };
}

for (const [name, act, shown] of [
  ["rename", (chat) => chat.rename(SESSION, "Renamed"), ["Renamed"]],
  ["deletion", (chat) => chat.remove(SESSION), []],
]) {
  test(`a ${name} that the server cannot store now is sent again when it says`, () => {
    const { chat, receive, take, waits, titles, frame } = listing(act);
    receive(refusal(NOT_NOW, frame));
    assert.deepEqual(titles(), shown);
    assert.deepEqual(take(), []);
    const [{ ms, run }] = waits.splice(0);
    assert.equal(ms, 1000);
    run();
    assert.deepEqual(take(), [frame]);
    chat.listed([session()], { complete: true }); // a list that was read before
    receive(refusal(NOT_NOW, frame));
    waits[0].run();
    assert.deepEqual(take(), [frame]);
  });

  test(`a ${name} that waits is sent once by a new connection`, () => {
    const { chat, receive, take, waits, frame } = listing(act);
    receive(refusal(NOT_NOW, frame));
    chat.connected();
    waits[0].run();
    assert.deepEqual(take(), [frame]);
  });

  test(`a ${name} that is refused for good is taken back, and said`, () => {
    const { receive, changes, titles, frame } = listing(act);
    receive(refusal(NEVER, frame));
    assert.deepEqual(titles(), ["A chat"]);
    const { title, attempt } = changes.find(({ kind }) => kind === "unchanged");
    assert.deepEqual([title, attempt], ["A chat", name === "rename" ? "renamed" : "deleted"]);
  });

  test(`a ${name} of a chat that somebody else deleted meanwhile needs no word`, () => {
    const { chat, receive, changes, frame } = listing(act);
    receive(refusal({ type: "not_found_error", code: "session_not_found" }, frame));
    assert.equal(chat.sessions.size, 0);
    assert.deepEqual(changes.filter(({ kind }) => kind === "unchanged" || kind === "notice"), []);
  });
}

test("of two renames that wait the first is forgotten, and the server's title is the one taken back", () => {
  const { chat, receive, take, waits, titles, frame } = listing((chat) => chat.rename(SESSION, "First"));
  receive(refusal(NOT_NOW, frame));
  chat.rename(SESSION, "Second");
  const [second] = take();
  waits[0].run();
  assert.deepEqual(take(), []);
  receive(refusal(NEVER, second));
  assert.deepEqual(titles(), ["A chat"]);
});

test("a rename that waits outlasts another change of its session", () => {
  const { receive, take, waits, frame } = listing((chat) => chat.rename(SESSION, "Renamed"));
  receive(refusal(NOT_NOW, frame));
  receive({ type: "session.updated", session: session({ title: "Automatic", revision: 2 }), by: "policy" });
  waits[0].run();
  assert.deepEqual(take(), [frame]);
});

test("of a rename and a deletion that wait, only the one that is refused for good is taken back", () => {
  const renamed = (chat) => chat.rename(SESSION, "Renamed");
  for (const [isDeletion, shown] of [[true, ["Renamed"]], [false, []]]) {
    const { chat, receive, take, titles, frame: rename } = listing(renamed);
    chat.remove(SESSION);
    const [deletion] = take();
    receive(refusal(NOT_NOW, rename), refusal(NOT_NOW, deletion));
    receive(refusal(NEVER, isDeletion ? deletion : rename));
    assert.deepEqual(titles(), shown);
  }
});

test("the name of a rename that waits stays, even if the session is read before it is taken", () => {
  const { chat, receive, titles, frame } = listing((chat) => chat.rename(SESSION, "Renamed"));
  receive(refusal(NOT_NOW, frame));
  chat.listed([session()], { held: chat.sessions.sorted, complete: true });
  receive({ type: "session.updated", session: session({ pinned: true, revision: 2 }), by: "user" });
  assert.deepEqual(titles(), ["Renamed"]);
  receive(refusal(NEVER, frame));
  assert.deepEqual(titles(), ["A chat"]);
});

test("a name that the server cleans is shown as the server has it, also if that is the one from before", () => {
  const { receive, titles, frame } = listing((chat) => chat.rename(SESSION, "A  chat"));
  receive({ type: "session.updated", session: session({ revision: 2 }), by: "user", event_id: frame.event_id });
  assert.deepEqual(titles(), ["A chat"]);
});

test("what becomes of a rename that a newer one replaced needs no word", () => {
  const { chat, receive, take, waits, changes, frame } = listing((chat) => chat.rename(SESSION, "First"));
  chat.rename(SESSION, "Second");
  const [second] = take();
  receive(refusal(NEVER, frame), refusal(NOT_NOW, second));
  assert.deepEqual(changes.filter(({ kind }) => kind === "unchanged" || kind === "notice"), []);
  waits[0].run();
  assert.deepEqual(take(), [second]);
});

test("a list that was read before a deletion does not bring the chat back", () => {
  const { chat, receive } = newChat();
  receive({ type: "session.deleted", session_id: "ses_B", by: "user" });
  chat.listed([session(), session({ id: "ses_B" })], { complete: true });
  assert.deepEqual(chat.sessions.sorted.map((entry) => entry.session.id), [SESSION]);
});

test("a deleted chat stays out of the list, even if it is read before the server says so", () => {
  const { chat, receive, titles } = listing((chat) => chat.remove(SESSION));
  chat.listed([session({ revision: 2 })]);
  receive({ type: "session.activity", session_id: SESSION, active: true });
  assert.deepEqual(titles(), []);
  receive({ type: "session.deleted", session_id: SESSION, by: "user" });
  assert.equal(chat.sessions.size, 0);
});

test("the newest sessions show which are gone, as far back as they go", () => {
  const { chat } = newChat();
  const at = (time) => session({ id: `ses_${time}`, updated_at: time });
  const known = () => chat.sessions.sorted.map(({ session: { id } }) => id);
  chat.listed([at(5), at(4), at(3)]);
  chat.listed([at(2), at(1)], { complete: true });
  assert.deepEqual(known(), ["ses_5", "ses_4", "ses_3", "ses_2", "ses_1"]);
  chat.listed([at(5), at(3)], { held: chat.sessions.sorted });
  assert.deepEqual(known(), ["ses_5", "ses_3", "ses_2", "ses_1"]);
  chat.listed([at(5), at(1)], { held: chat.sessions.sorted, complete: true });
  assert.deepEqual(known(), ["ses_5", "ses_1"]);
});

test("a session that came or changed while the list was read stays in it", () => {
  const { chat, receive } = newChat();
  chat.listed([session(), session({ id: "ses_B" })]);
  const held = chat.sessions.sorted;
  receive({ type: "session.created", session: session({ id: "ses_C" }), epoch: "e", offset: 1, replayed: false });
  receive({ type: "session.activity", session_id: "ses_B", active: true });
  chat.listed([], { held, complete: true });
  assert.deepEqual(chat.sessions.sorted.map(({ session: { id } }) => id), ["ses_B", "ses_C"]);
});

test("the session on screen stays: its subscription says what became of it", () => {
  const { chat } = newChat();
  chat.listed([session()]);
  chat.open(SESSION);
  chat.listed([], { held: chat.sessions.sorted, complete: true });
  assert.equal(chat.sessions.size, 1);
});
