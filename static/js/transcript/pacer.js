/**
 * Paints text evenly although it arrives in lumps: each lump is fully shown at most 120 ms after it
 * came, and the first one at once. It also knows which event the painted text belongs to, which a
 * stop must report to the server.
 */

const LAG_MS = 120; // the page promises 150; the rest is for the frame itself
const LONGEST_FRAME_MS = 50;

export class Pacer {
  /** @type {{end: number, number: number, due: number}[]} lumps not fully shown, oldest first */
  #queue = [];
  #done; // the last lump that is fully shown: {end, number}
  #shown;
  #first = true;
  #lastFrame = 0;

  /** @param {number} length text that is there already @param {number} number its event number */
  constructor(length, number) {
    this.jump(length, number);
  }

  get idle() {
    return this.#queue.length === 0;
  }

  /** The text is now `end` long, by the event `number`. */
  push(end, number, now) {
    this.#queue.push({ end, number, due: this.#first ? now : now + LAG_MS });
    this.#first = false;
  }

  /** Show everything without animation: a snapshot, a hidden page, reduced motion. */
  jump(length, number) {
    this.#queue = [];
    this.#done = { end: length, number };
    this.#shown = length;
  }

  /** @returns {number} how much to show in the frame at `now`; call once per frame */
  advance(now) {
    const frameMs = Math.min(LONGEST_FRAME_MS, Math.max(1, now - this.#lastFrame));
    this.#lastFrame = now;
    let step = 0;
    for (const { end, due } of this.#queue) {
      const share = Math.min(1, frameMs / Math.max(1, due - now));
      step = Math.max(step, (end - this.#shown) * share);
    }
    this.#shown += Math.ceil(step);
    while (this.#queue[0]?.end <= this.#shown) this.#done = this.#queue.shift();
    return this.#shown;
  }

  /** Stop here: complete the lump whose painting has begun, and forget the rest. */
  freeze() {
    const begun = this.#shown > this.#done.end ? this.#queue[0] : this.#done;
    this.jump(begun.end, begun.number);
    return { length: begun.end, number: begun.number };
  }
}
