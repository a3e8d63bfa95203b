/**
 * Which diagrams have a frame: those near what is read, a few at a time, because each frame is a document with a
 * library in it. One is drawn after the other, so that each has the whole time that a drawing may take.
 */

export class Turns {
  #most;
  #draw;
  #drop;
  #near = new Set();
  #waiting = new Set();
  #drawing = null;
  #drawn = new Set(); // with a frame; the one that came into reach last stands last

  /**
   * @param {object} how
   * @param {number} how.most frames at a time
   * @param {(diagram: object) => void} how.draw must call `ends` later
   * @param {(diagram: object) => void} how.drop takes its frame away
   */
  constructor({ most, draw, drop }) {
    this.#most = most;
    this.#draw = draw;
    this.#drop = drop;
  }

  /** It came into reach. */
  comes(diagram) {
    this.#near.add(diagram);
    if (this.#drawn.delete(diagram)) this.#drawn.add(diagram);
    else if (this.#drawing !== diagram) this.#waiting.add(diagram);
    this.#next();
  }

  /** It went out of reach: it keeps its frame until another one needs the place. */
  leaves(diagram) {
    this.#near.delete(diagram);
    this.#waiting.delete(diagram);
    this.#next();
  }

  /** It is no longer in the document, or failed. */
  gives(diagram) {
    this.#near.delete(diagram);
    this.#waiting.delete(diagram);
    this.#drawn.delete(diagram);
    if (this.#drawing === diagram) this.#drawing = null;
    this.#drop(diagram);
    this.#next();
  }

  /** Its drawing is done; the next one begins. */
  ends(diagram) {
    if (this.#drawing !== diagram) return;
    this.#drawing = null;
    this.#drawn.add(diagram);
    this.#next();
  }

  /** All frames go, and those in reach are drawn anew, but for one. */
  restart(without) {
    this.#near.delete(without);
    const gone = [...this.#drawn, ...(this.#drawing ? [this.#drawing] : [])];
    this.#drawn.clear();
    this.#drawing = null;
    for (const diagram of gone) {
      this.#drop(diagram);
      if (this.#near.has(diagram)) this.#waiting.add(diagram);
    }
    this.#next();
  }

  /** Do something to each one that has a picture. */
  each(change) {
    for (const diagram of this.#drawn) change(diagram);
  }

  #next() {
    if (this.#drawing !== null || this.#waiting.size === 0) return;
    if (this.#drawn.size >= this.#most && !this.#makeRoom()) return;
    const [first] = this.#waiting;
    this.#waiting.delete(first);
    this.#drawing = first;
    this.#draw(first);
  }

  #makeRoom() {
    const away = [...this.#drawn].find((diagram) => !this.#near.has(diagram));
    if (away === undefined) return false;
    this.#drawn.delete(away);
    this.#drop(away);
    return true;
  }
}
