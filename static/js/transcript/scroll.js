/**
 * Follow or stay. While the reader is at the bottom, the newest line stays in view; once they scroll
 * up, nothing moves under their eyes, and a pill leads back.
 */

const NEAR_BOTTOM_PX = 40;

export class Scroll {
  following = true;
  #scroller;
  #onchange;
  #lastTop = 0;

  /** @param {HTMLElement} scroller @param {HTMLElement} content @param {() => void} onchange */
  constructor(scroller, content, onchange) {
    this.#scroller = scroller;
    this.#onchange = onchange;
    scroller.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    const settled = new ResizeObserver(() => this.keep());
    settled.observe(content); // code that gets coloured, a table that gets its width
    settled.observe(scroller); // the composer grows, a phone's keyboard opens
  }

  /** Whether a reader who went up should be offered the way back. */
  get away() {
    return !this.following && this.#distance > NEAR_BOTTOM_PX;
  }

  /** Call after the content changed. */
  keep() {
    if (this.following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
  }

  /** The reader looks at something in the middle: the end may grow out of sight. */
  stay() {
    this.#follow(false);
  }

  toLatest() {
    this.#follow(true);
    this.keep();
  }

  /** Insert above what is in view without moving it. */
  holding(change) {
    const before = this.#scroller.scrollHeight - this.#scroller.scrollTop;
    change();
    if (!this.following) this.#scroller.scrollTop = this.#scroller.scrollHeight - before;
  }

  get #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight;
  }

  /** Only a reader moves up; growing content moves the bottom away without moving the top. */
  #scrolled() {
    const top = this.#scroller.scrollTop;
    const movedUp = top < this.#lastTop - 1;
    this.#lastTop = top;
    if (this.#distance <= NEAR_BOTTOM_PX && !movedUp) this.#follow(true);
    else if (movedUp && this.#distance > NEAR_BOTTOM_PX) this.#follow(false);
    else this.#onchange();
  }

  #follow(following) {
    this.following = following;
    this.#onchange();
  }
}
