/**
 * Which diagrams have a frame: those near what is read, a few at a time, because each frame is a document with a
 * library in it. One is drawn after the other, in other colours too, so that each has the whole time that a drawing may
 * take.
 */

export class Turns {
  #most;
  #isThere;
  #draw;
  #repaint;
  #drop;
  #near = new Set();
  #waiting = new Set();
  #drawing = null;
  #drawn = new Set(); // with a frame; the one that came into reach last stands last
  #stale = new Set(); // of these, and of the one that is drawn: in colours that are no longer the page's

  /**
   * @param {object} how
   * @param {number} how.most frames at a time
   * @param {(diagram: object) => boolean} how.isThere whether it is in the document
   * @param {(diagram: object) => void} how.draw must call `ends` later
   * @param {(diagram: object) => void} how.repaint draws it again in its frame, must call `ends` later
   * @param {(diagram: object) => void} how.drop takes its frame away
   */
  constructor({ most, isThere, draw, repaint, drop }) {
    this.#most = most;
    this.#isThere = isThere;
    this.#draw = draw;
    this.#repaint = repaint;
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
    this.#forget(diagram);
    this.#next();
  }

  /** Its drawing is done; the next one begins. */
  ends(diagram) {
    if (this.#drawing !== diagram) return;
    this.#drawing = null;
    this.#drawn.add(diagram);
    this.#next();
  }

  /** All frames go, and those in reach are drawn again, but for one. */
  restart(without) {
    this.#near.delete(without);
    const gone = new Set([...this.#drawn, ...(this.#drawing ? [this.#drawing] : [])]);
    this.#drawn.clear();
    this.#stale.clear();
    this.#drawing = null;
    for (const diagram of gone) {
      this.#drop(diagram);
      if (this.#near.has(diagram)) this.#waiting.add(diagram);
    }
    this.#next();
  }

  /** The page has other colours: those in reach are drawn again in their frames, the others when they come back. */
  repaint() {
    while (this.#makeRoom());
    this.#stale = new Set(this.#drawn);
    if (this.#drawing !== null) this.#stale.add(this.#drawing);
    this.#next();
  }

  #next() {
    // The observer says nothing of one that was out of reach when it left the document.
    if (this.#drawing !== null && !this.#isThere(this.#drawing)) this.#forget(this.#drawing);
    if (this.#drawing !== null) return;
    if (this.#stale.size > 0) this.#begin(this.#stale, this.#repaint);
    else if (this.#waiting.size > 0 && this.#hasRoom()) this.#begin(this.#waiting, this.#draw);
  }

  /** The first of them has its turn. */
  #begin(diagrams, draw) {
    const [first] = diagrams;
    diagrams.delete(first);
    this.#drawing = first;
    draw(first);
  }

  #hasRoom() {
    return this.#drawn.size < this.#most || this.#makeRoom();
  }

  /** Take the frame of one that is out of reach, if there is one. */
  #makeRoom() {
    const away = [...this.#drawn].find((diagram) => !this.#near.has(diagram) && diagram !== this.#drawing);
    if (away === undefined) return false;
    this.#drawn.delete(away);
    this.#drop(away);
    return true;
  }

  #forget(diagram) {
    for (const diagrams of [this.#near, this.#waiting, this.#drawn, this.#stale]) diagrams.delete(diagram);
    if (this.#drawing === diagram) this.#drawing = null;
    this.#drop(diagram);
  }
}
