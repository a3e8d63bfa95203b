/** Work that is done in turns, a piece in each frame: so that none of them takes long. */

const pending = new Map();
let isAsked = false;

/** Do this in a frame of its own; what was to be done for the same key is forgotten. @param {object} key @param {() => void} draw */
export function drawSoon(key, draw) {
  pending.set(key, draw);
  if (!isAsked) requestAnimationFrame(step);
  isAsked = true;
}

/** Nothing is to be done for this key any more. */
export const forget = (key) => pending.delete(key);

function step() {
  const [next] = pending;
  isAsked = pending.size > 1;
  if (isAsked) requestAnimationFrame(step);
  if (!next) return;
  pending.delete(next[0]);
  next[1]();
}
