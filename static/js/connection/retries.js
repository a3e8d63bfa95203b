/**
 * When to try again, and how long to wait for a try. A network that is back says nothing, so tries
 * are quick at first; jitter and a back-off spare a server that cannot take them. docs/protocol.md
 * has the rule and its reasons.
 */

const FIRST_MS = 250; // "at once", spread a little
const QUICK_MS = 250; // between the starts of two quick tries; by chance up to twice that
const QUICK_TRIES = 20;
const BACKOFF_BASE_MS = 300;
const BACKOFF_CAP_MS = 20_000;
const RESET_MS = 30_000; // connected this long: the next trouble is a new one
const LEAST_LIMIT_MS = 500;
const MOST_LIMIT_MS = 10_000;

export class Retries {
  /** How many tries were put off by the back-off. */
  numPutOff = 0;
  #numQuick = 0;
  #lostAt = null;
  #beganAt = null; // the last try, if it did not open
  #openedAt = null;
  #openingMs = MOST_LIMIT_MS; // what the last opening took; nobody knows yet
  #random;

  /** @param {() => number} random */
  constructor(random) {
    this.#random = random;
  }

  /** A try begins. @returns {number} after how many ms to give it up */
  began(now) {
    this.#beganAt = now;
    const awayMs = now - (this.#lostAt ?? now);
    return Math.min(MOST_LIMIT_MS, Math.max(LEAST_LIMIT_MS, 3 * this.#openingMs, awayMs / 4));
  }

  opened(now) {
    this.#openingMs = now - this.#beganAt;
    this.#openedAt = now;
    this.#beganAt = this.#lostAt = null;
  }

  /** The connection is lost, or the try has failed. */
  closed(now) {
    if (this.#openedAt !== null && now - this.#openedAt >= RESET_MS) this.#numQuick = this.numPutOff = 0;
    this.#openedAt = null;
    this.#lostAt ??= now;
  }

  /**
   * @param {boolean} isLoss of the network, as far as one can know; otherwise the server has refused
   * @returns {number} ms until the next try
   */
  delay(now, isLoss) {
    if (isLoss && this.#numQuick < QUICK_TRIES) {
      this.#numQuick += 1;
      if (this.#beganAt === null) return this.#random() * FIRST_MS;
      return Math.max(0, this.#beganAt + QUICK_MS * (1 + this.#random()) - now);
    }
    const bound = Math.min(BACKOFF_CAP_MS, BACKOFF_BASE_MS * 2 ** this.numPutOff);
    this.numPutOff += 1;
    return this.#random() * bound;
  }

  /** As long as the server asks for, and some more by chance: it asks others, too. */
  asked(ms) {
    return ms * (1 + this.#random() / 4);
  }

  /** Whether a try is under way for so long that another one is worth more. */
  isSlow(now) {
    return now - this.#beganAt > QUICK_MS;
  }
}
