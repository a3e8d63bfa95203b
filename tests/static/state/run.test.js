import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { created, delta, done, inProgress, newRun, RESPONSE, snapshot } from "../frames.js";

test("deltas in order make the text", () => {
  const { run, message } = newRun();
  assert.equal(run.receive(inProgress()), "applied");
  assert.equal(run.receive(delta(3, 0, "Two")), "applied");
  assert.equal(run.receive(delta([4, 6], 3, " plus two")), "applied");
  assert.equal(message.text, "Two plus two");
  assert.equal(run.last, 6);
});

test("an event already applied is dropped", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta([3, 5], 0, "abc"));
  assert.equal(run.receive(delta(3, 0, "a")), "dropped");
  assert.equal(run.receive(delta([4, 5], 1, "bc")), "dropped");
  assert.equal(run.receive(created()), "dropped");
  assert.equal(message.text, "abc");
});

test("a gap asks once and lets deltas pass until the answer comes", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "a"));
  assert.equal(run.receive(delta(5, 2, "c")), "resume");
  assert.deepEqual(run.position(), { response_id: RESPONSE, fence: 1, after_sequence_number: 3 });
  assert.equal(run.receive(delta(6, 3, "d")), "dropped");
  assert.equal(run.receive(delta([4, 6], 1, "bcd")), "applied");
  assert.equal(run.receive(delta(7, 4, "e")), "applied");
  assert.equal(message.text, "abcde");
});

test("a coalesced range that overlaps what is held is a gap, not a repeat", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta([3, 4], 0, "ab"));
  assert.equal(run.receive(delta([4, 6], 1, "bcd")), "resume");
  assert.equal(message.text, "ab");
});

test("a second gap after the first was answered asks again", () => {
  const { run } = newRun();
  run.receive(inProgress());
  assert.equal(run.receive(delta(4, 1, "b")), "resume");
  assert.equal(run.receive(delta([3, 4], 0, "ab")), "applied");
  assert.equal(run.receive(delta(9, 9, "z")), "resume");
});

test("a wrong text_offset has the whole text sent again", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abc"));
  assert.equal(run.receive(delta(4, 7, "x")), "resume");
  assert.equal(run.position().after_sequence_number, 0);
  assert.equal(run.receive(delta(5, 4, "y")), "dropped");
  run.receive(created());
  run.receive(inProgress());
  assert.equal(run.receive(delta([3, 5], 0, "abcxy")), "applied");
  assert.equal(message.text, "abcxy");
});

test("text lengths count UTF-16 code units, as JavaScript does", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  assert.equal(run.receive(delta(3, 0, "⚓🐟")), "applied");
  assert.equal(run.receive(delta(4, 3, "é")), "applied");
  assert.equal(message.text, "⚓🐟é");
});

test("a text that stays wrong is not asked for again and again", () => {
  const { run, message } = newRun();
  const outcomes = [];
  for (let round = 0; round < 5; round += 1) {
    run.receive(created());
    run.receive(inProgress());
    outcomes.push(run.receive(delta(3, 5, "x")));
  }
  assert.equal(outcomes.filter((outcome) => outcome === "resume").length, 2);
  assert.equal(run.receive(done(4, 3, { text: "end" })), "ended");
  assert.equal(message.text, "end");
});

test("a snapshot replaces text and position, also backwards after a takeover", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta([3, 57], 0, "seen from memory"));
  assert.equal(run.receive(snapshot(55, "stored", { fence: 2 })), "replaced");
  assert.equal(message.text, "stored");
  assert.deepEqual(run.position(), { response_id: RESPONSE, fence: 2, after_sequence_number: 55 });
  assert.equal(run.receive(delta(56, 6, " more", { fence: 2 })), "applied");
  assert.equal(message.text, "stored more");
});

test("the fence is stored, never compared", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  assert.equal(run.receive(delta(3, 0, "a", { fence: 4 })), "applied");
  assert.equal(run.fence, 4);
  assert.equal(run.receive(delta(4, 1, "b", { fence: 3 })), "applied");
  assert.equal(message.text, "ab");
});

test("a snapshot in parts is applied when the last part is there", () => {
  const { run, message } = newRun();
  assert.notEqual(run.receive(snapshot(9, "one ", { part: 1, parts: 3 })), "replaced");
  run.receive(delta(10, 11, "early"));
  run.receive(snapshot(9, "two ", { part: 2, parts: 3 }));
  assert.equal(message.text, "");
  assert.equal(run.receive(snapshot(9, "three", { part: 3, parts: 3 })), "replaced");
  assert.equal(message.text, "one two three");
  assert.equal(run.last, 9);
});

test("a snapshot whose first part is missing is asked for again", () => {
  const { run, message } = newRun();
  assert.equal(run.receive(snapshot(9, "two", { part: 2, parts: 2 })), "resume");
  assert.equal(message.text, "");
});

test("done is applied over any gap, and settles the text", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abc"));
  assert.equal(run.receive(delta(9, 8, "z")), "resume");
  assert.equal(run.receive(done(12, 11, { text: "hello world" })), "ended");
  assert.equal(message.text, "hello world");
  assert.equal(message.status, "completed");
});

test("done without text cuts what is held", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta([3, 43], 0, "seven eight nine"));
  run.receive(done(44, 11, { status: "cancelled", reason: "client_cancelled" }));
  assert.equal(message.text, "seven eight");
  assert.equal(message.status, "interrupted");
  assert.equal(message.reason, "client_cancelled");
});

test("done with text is cut at text_length too", () => {
  const { run, message } = newRun();
  run.receive(done(9, 4, { text: "abcdefgh" }));
  assert.equal(message.text, "abcd");
});

test("done that leaves the text short has it fetched", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abc"));
  assert.equal(run.receive(done(9, 30)), "refetch");
  assert.equal(message.text, "abc");
});

test("after the end nothing changes the text", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abc"));
  run.receive(done(4, 3));
  assert.equal(run.receive(delta(5, 3, "late")), "dropped");
  assert.equal(run.receive(snapshot(6, "later")), "dropped");
  assert.equal(run.receive(done(4, 3)), "dropped");
  assert.equal(message.text, "abc");
});

test("frozen text does not grow, and done settles it", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "one two"));
  run.freeze(3);
  run.receive(delta(4, 7, " three"));
  assert.equal(message.visibleText, "one");
  run.receive(done(5, 3, { status: "cancelled", reason: "client_cancelled" }));
  assert.equal(message.visibleText, "one");
});

test("an answer that ended before the stop arrived is shown whole", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "one two"));
  run.freeze(3);
  run.receive(done(4, 7));
  assert.equal(message.visibleText, "one two");
  assert.equal(message.status, "completed");
});

test("a second stop may only hide more", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "one two"));
  run.freeze(3);
  run.freeze(7);
  assert.equal(message.visibleText, "one");
});

test("continuing a message appends after the length already there", () => {
  const { run, message } = newRun();
  message.text = "Once upon";
  run.receive(inProgress());
  assert.equal(run.receive(delta(3, 9, " a time")), "applied");
  assert.equal(message.text, "Once upon a time");
});

test("a replay from the start rebuilds a continued message after its base", () => {
  const { run, message } = newRun();
  message.text = "Once upon";
  run.receive(inProgress());
  run.receive(delta(3, 9, " a time"));
  assert.equal(run.receive(delta(4, 99, "?")), "resume");
  run.receive(created());
  run.receive(inProgress());
  run.receive(delta([3, 4], 9, " a time, a boat"));
  assert.equal(message.text, "Once upon a time, a boat");
});

test("reasoning is its own text with its own offsets", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "hm", { type: "response.reasoning_text.delta" }));
  run.receive(delta(4, 0, "Four"));
  run.receive(delta(5, 2, "m", { type: "response.reasoning_text.delta" }));
  assert.equal(message.reasoningText, "hmm");
  assert.equal(message.text, "Four");
});

test("a snapshot without thoughts leaves what a continued answer had thought before", () => {
  const { run, message } = newRun();
  message.update({ status: "in_progress", reasoning: "hm" });
  for (const number of [4, 5]) run.receive(snapshot(number, "Four"));
  assert.deepEqual([message.reasoningText, message.text], ["hm", "Four"]);
  run.receive(delta(6, 0, "we", { type: "response.reasoning_text.delta" }));
  assert.equal(message.reasoningText, "we");
  run.receive(snapshot(7, "Four", { reasoning_text: "well" }));
  assert.equal(message.reasoningText, "well");
  run.receive(snapshot(5, "Four", { fence: 2 })); // another worker never heard of these
  assert.equal(message.reasoningText, "");
});

test("a thought lasts until something else comes, and a page that loads it knows no time", () => {
  mock.timers.enable({ apis: ["Date"], now: 1000 });
  try {
    const { run, message } = newRun();
    run.receive(inProgress());
    run.receive(delta(3, 0, "hm", { type: "response.reasoning_text.delta" }));
    assert.deepEqual([message.thinking, message.thoughtTitle], [true, "Thinking"]);
    mock.timers.tick(12_400);
    run.receive(delta(4, 0, "Four"));
    mock.timers.tick(60_000);
    run.receive(delta(5, 4, "."));
    assert.deepEqual([message.thinking, message.thoughtTitle], [false, "Thought for 12 s"]);
  } finally {
    mock.timers.reset();
  }
  const { message } = newRun();
  message.update({ status: "completed", reasoning: "hm" });
  assert.deepEqual([message.reasoningText, message.thoughtTitle], ["hm", "Thought"]);
});

test("a numbered event of an unknown type counts, so the next one is no gap", () => {
  const { run, message } = newRun();
  assert.equal(run.receive(inProgress({ type: "response.output_audio.delta" })), "applied");
  assert.equal(run.receive(delta(3, 0, "a")), "applied");
  assert.equal(message.text, "a");
});

test("the queue is shown until the answer begins", () => {
  const { run } = newRun();
  run.receive({ type: "response.queued", response_id: RESPONSE, reason: "engine", position: 3 });
  assert.equal(run.queue.position, 3);
  run.receive(inProgress());
  assert.equal(run.queue, null);
});

test("every order of duplicated deliveries gives the same text", () => {
  const words = ["Two", " plus", " two", " is", " four", "."];
  const frames = [];
  let offset = 0;
  words.forEach((word, index) => {
    frames.push(delta(index + 3, offset, word));
    offset += word.length;
  });
  let seed = 7;
  const random = (bound) => (seed = (seed * 48271) % 2147483647) % bound;
  for (let round = 0; round < 200; round += 1) {
    const { run, message } = newRun();
    run.receive(inProgress());
    let sentUpTo = 0; // the log; live deliveries jump about, a resume replays from our position
    while (run.last < 8) {
      const index = random(frames.length);
      const outcome = run.receive(frames[index]);
      if (outcome === "resume") {
        const after = run.position().after_sequence_number;
        for (const frame of frames.slice(Math.max(0, after - 2))) run.receive(frame);
      }
      assert.ok((sentUpTo += 1) < 1000);
    }
    assert.equal(message.text, words.join(""));
  }
});

test("an end that was sent before it was stored gives way to the one that is", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abcdef"));
  assert.equal(run.receive(done(4, 6, { durable: false })), "ended");
  assert.equal(message.durable, false);
  const stored = done(4, 2, { status: "cancelled", reason: "client_cancelled" });
  assert.equal(run.receive(stored), "ended");
  assert.deepEqual([message.text, message.status, message.durable], ["ab", "interrupted", true]);
  assert.equal(run.receive(done(4, 6)), "dropped");
});

test("an answer whose early end was never stored goes on from its snapshot", () => {
  const { run, message } = newRun();
  run.receive(inProgress());
  run.receive(delta(3, 0, "abc"));
  run.receive(done(4, 3, { durable: false }));
  assert.equal(run.receive(snapshot(2, "a", { fence: 2 })), "replaced");
  assert.equal(message.streaming, true);
  assert.equal(run.receive(delta(3, 1, "x", { fence: 2 })), "applied");
  assert.equal(run.receive(done(4, 2, { fence: 2 })), "ended");
  assert.deepEqual([message.text, message.status], ["ax", "completed"]);
});

test("what the tokens' likelihoods say is kept until a snapshot replaces the text", () => {
  const { run, message } = newRun();
  const token = (text) => ({ token: text, logprob: -0.5, top: [] });
  run.receive(inProgress());
  run.receive(delta(3, 0, "a", { logprobs: [token("a")] }));
  run.receive(delta(4, 1, "bc", { logprobs: [token("b"), token("c")] }));
  assert.deepEqual(message.tokens.map(({ token: text }) => text), ["a", "b", "c"]);
  run.receive(snapshot(9, "abcd"));
  assert.deepEqual(message.tokens, []);
});
