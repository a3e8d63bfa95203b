import assert from "node:assert/strict";
import { test } from "node:test";

import { Pacer } from "../../../static/js/transcript/pacer.js";

const FRAME_MS = 16;

test("the first text is painted in the first frame", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(40, 3, 1000);
  assert.equal(pacer.advance(1001), 40);
});

test("later text is spread over several frames", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(1, 3, 0);
  pacer.advance(0);
  pacer.push(101, 4, 0);
  const shown = [16, 32, 48].map((now) => pacer.advance(now));
  const steps = shown.map((length, index) => length - (shown[index - 1] ?? 1));
  for (const step of steps) assert.ok(step > 5 && step < 25, `a step of ${step}`);
});

test("no text is shown later than 150 ms after it came, in any rhythm", () => {
  for (const every of [5, 25, 60, 400]) {
    const pacer = new Pacer(0, 2);
    const arrivals = [];
    let end = 0;
    for (let now = 0; now < 2000; now += 1) {
      if (now % every === 0 && now < 1500) {
        end += now === 500 ? 2000 : 7; // one big lump among small ones
        pacer.push(end, now + 3, now);
        arrivals.push({ end, at: now });
      }
      if (now % FRAME_MS !== 0) continue;
      const shown = pacer.advance(now);
      for (const arrival of arrivals) {
        assert.ok(shown >= arrival.end || now - arrival.at <= 150, `late at ${now}, every ${every}`);
      }
    }
    assert.equal(pacer.advance(3000), end);
    assert.ok(pacer.idle);
  }
});

test("it never goes back", () => {
  const pacer = new Pacer(10, 2);
  let last = 10;
  for (let now = 0; now < 500; now += FRAME_MS) {
    pacer.push(10 + now, 3 + now, now);
    const shown = pacer.advance(now);
    assert.ok(shown >= last);
    last = shown;
  }
});

test("a freeze completes the lump whose painting has begun, and names its event", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(5, 3, 0);
  pacer.advance(0);
  pacer.push(105, 4, 0);
  pacer.push(205, 7, 0);
  pacer.advance(16);
  assert.deepEqual(pacer.freeze(), { length: 105, number: 4 });
  assert.equal(pacer.advance(500), 105);
});

test("a freeze between lumps shows nothing new", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(5, 3, 0);
  pacer.advance(0);
  pacer.push(9, 4, 1);
  assert.deepEqual(pacer.freeze(), { length: 5, number: 3 });
});

test("a freeze before anything was painted names the event before the text", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(5, 3, 0);
  assert.deepEqual(pacer.freeze(), { length: 0, number: 2 });
});

test("a jump shows everything at once", () => {
  const pacer = new Pacer(0, 2);
  pacer.push(5, 3, 0);
  pacer.jump(70, 12);
  assert.equal(pacer.advance(1), 70);
  assert.deepEqual(pacer.freeze(), { length: 70, number: 12 });
});
