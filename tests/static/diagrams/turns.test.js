import assert from "node:assert/strict";
import { test } from "node:test";

import { Turns } from "../../../static/js/diagrams/turns.js";

/** Turns, and what they did: `+a` begins to draw a, `~a` draws it again in its frame, `-a` takes its frame. */
function made(most = 2) {
  const deeds = [];
  const gone = new Set(); // from the document
  const turns = new Turns({
    most,
    isThere: (name) => !gone.has(name),
    draw: (name) => deeds.push(`+${name}`),
    repaint: (name) => deeds.push(`~${name}`),
    drop: (name) => deeds.push(`-${name}`),
  });
  const draw = (...names) => {
    for (const name of names) {
      turns.comes(name);
      turns.ends(name);
    }
    deeds.length = 0;
  };
  return { turns, deeds, draw, gone };
}

test("one is drawn after the other, in the order in which they came", () => {
  const { turns, deeds } = made(3);
  for (const name of ["a", "b", "c"]) turns.comes(name);
  assert.deepEqual(deeds, ["+a"]);
  turns.ends("a");
  turns.ends("b");
  assert.deepEqual(deeds, ["+a", "+b", "+c"]);
});

test("one that left before its turn is not drawn", () => {
  const { turns, deeds } = made();
  for (const name of ["a", "b", "c"]) turns.comes(name);
  turns.leaves("b");
  turns.ends("a");
  assert.deepEqual(deeds, ["+a", "+c"]);
});

test("one that is out of reach keeps its frame until another one needs the place", () => {
  const { turns, deeds, draw } = made();
  draw("a", "b");
  turns.leaves("a");
  assert.deepEqual(deeds, []);
  turns.comes("c");
  assert.deepEqual(deeds, ["-a", "+c"]);
});

test("the one that has been out of reach for longest gives its place first", () => {
  const { turns, deeds, draw } = made();
  draw("a", "b");
  turns.leaves("a");
  turns.leaves("b");
  turns.comes("a"); // seen again
  turns.leaves("a");
  turns.comes("c");
  assert.deepEqual(deeds, ["-b", "+c"]);
});

test("while all frames are in reach, the next one waits", () => {
  const { turns, deeds, draw } = made();
  draw("a", "b");
  turns.comes("c");
  assert.deepEqual(deeds, []);
  turns.leaves("b");
  assert.deepEqual(deeds, ["-b", "+c"]);
});

test("one that comes back is drawn again if its frame went, and not otherwise", () => {
  const { turns, deeds, draw } = made();
  draw("a", "b");
  turns.leaves("a");
  turns.comes("c");
  turns.ends("c");
  turns.leaves("b");
  turns.comes("b");
  assert.deepEqual(deeds, ["-a", "+c"]);
  turns.leaves("c");
  turns.comes("a");
  assert.deepEqual(deeds, ["-a", "+c", "-c", "+a"]);
});

test("one that failed or left the document gives way to the next", () => {
  const { turns, deeds } = made();
  turns.comes("a");
  turns.comes("b");
  turns.gives("a");
  assert.deepEqual(deeds, ["+a", "-a", "+b"]);
});

test("after a restart those in reach are drawn anew, one after the other, without the one that caused it", () => {
  const { turns, deeds, draw } = made(4);
  draw("a", "b", "c");
  turns.leaves("a");
  turns.comes("slow");
  turns.restart("slow");
  assert.deepEqual(deeds.slice(1, -1).toSorted(), ["-a", "-b", "-c", "-slow"]);
  assert.equal(deeds.at(-1), "+b");
  turns.ends("b");
  turns.ends("c");
  assert.deepEqual(deeds.slice(-2), ["+b", "+c"]);
});

test("never are there more frames than may be", () => {
  const { turns, deeds } = made(3);
  for (let place = 0; place < 50; place += 1) {
    turns.comes(place);
    turns.ends(place);
    if (place >= 2) turns.leaves(place - 2);
    const alive = deeds.reduce((count, deed) => count + (deed.startsWith("+") ? 1 : -1), 0);
    assert.ok(alive <= 3);
  }
  assert.equal(deeds.filter((deed) => deed.startsWith("+")).length, 50);
});

test("one that left the document out of reach, while it was drawn, holds up nothing", () => {
  const { turns, deeds, gone } = made();
  turns.comes("a");
  turns.leaves("a");
  gone.add("a");
  turns.comes("b");
  assert.deepEqual(deeds, ["+a", "-a", "+b"]);
  turns.ends("a"); // too late
  turns.comes("c");
  assert.deepEqual(deeds, ["+a", "-a", "+b"]);
});

test("in other colours they are drawn again one after the other, before one that has no picture yet", () => {
  const { turns, deeds, draw } = made(3);
  draw("a", "b");
  turns.repaint();
  turns.comes("c");
  assert.deepEqual(deeds, ["~a"]);
  turns.ends("a");
  turns.ends("b");
  assert.deepEqual(deeds, ["~a", "~b", "+c"]);
});

test("in other colours one that is out of reach is drawn when it comes back", () => {
  const { turns, deeds, draw } = made();
  draw("a", "b");
  turns.leaves("a");
  turns.repaint();
  turns.ends("b");
  assert.deepEqual(deeds, ["-a", "~b"]);
  turns.comes("a");
  assert.deepEqual(deeds, ["-a", "~b", "+a"]);
});

test("one that is being drawn while the colours change is drawn once more", () => {
  const { turns, deeds } = made();
  turns.comes("a");
  turns.repaint();
  assert.deepEqual(deeds, ["+a"]);
  turns.ends("a");
  turns.repaint(); // and again, while it is drawn again
  turns.ends("a");
  turns.ends("a");
  assert.deepEqual(deeds, ["+a", "~a", "~a"]);
});

test("one that fails in other colours gives way to the next", () => {
  const { turns, deeds, draw } = made(3);
  draw("a", "b", "c");
  turns.repaint();
  turns.gives("a");
  turns.gives("c");
  turns.ends("b");
  assert.deepEqual(deeds, ["~a", "-a", "~b", "-c"]);
});

test("after a restart in other colours each frame is taken and drawn anew once", () => {
  const { turns, deeds, draw } = made(3);
  draw("a", "b");
  turns.repaint();
  turns.restart("a");
  turns.ends("b");
  assert.deepEqual(deeds, ["~a", "-a", "-b", "+b"]);
});
