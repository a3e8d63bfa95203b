/**
 * The frame in which one diagram is drawn. It has no origin, so nothing of the page is in its reach, and no network.
 * The page sends it the library and the source; of what comes back only numbers and flags are taken.
 */

import { isDark } from "../widgets/theme.js";
import { look } from "./look.js";

const FRAME_URL = "/diagram";
const LIBRARY_URL = "/static/vendor/mermaid-11.17.2/mermaid.js";
const LOAD_MS = 30_000;
const DRAW_MS = 5_000;
const TALLEST = 4_000; // pixels, on paper too

export const FAILURES = {
  invalid: "could not be drawn",
  slow: "took too long to draw",
  away: "could not be loaded",
};

export class Frame {
  #source;
  #ondrawn;
  #onfailed;
  #timer;

  /**
   * @param {{source: string, name: string}} diagram
   * @param {{ondrawn: (height: number) => void, onfailed: (failure: keyof FAILURES) => void}} listeners `ondrawn`
   * comes again when the height changes
   */
  constructor({ source, name }, { ondrawn, onfailed }) {
    this.#source = source;
    this.#ondrawn = ondrawn;
    this.#onfailed = onfailed;
    this.element = document.createElement("iframe");
    this.element.setAttribute("sandbox", "allow-scripts"); // without allow-same-origin: no origin
    this.element.title = name;
    this.element.src = FRAME_URL;
    this.element.addEventListener("load", () => this.#begin()); // again, if the frame was moved in the document
    addEventListener("message", this.#hear);
    this.#limit(LOAD_MS, "away");
  }

  /** Draw, with the colours that the page has now, in the time that a drawing may take. */
  paint() {
    this.#limit(DRAW_MS, "slow");
    this.#post({ source: this.#source, ...look(isDark()) });
  }

  end() {
    clearTimeout(this.#timer);
    removeEventListener("message", this.#hear);
    this.element.remove();
  }

  async #begin() {
    try {
      this.#post({ library: await loadLibrary() });
    } catch {
      this.#onfailed("away");
    }
  }

  #hear = ({ source, data }) => {
    if (source === null || source !== this.element.contentWindow) return;
    if (data?.ready === true) {
      this.paint();
    } else if (data?.failed === true) {
      this.#onfailed("invalid");
    } else if (Number.isFinite(data?.height) && data.height > 0) {
      clearTimeout(this.#timer);
      this.#ondrawn(Math.min(data.height, TALLEST));
    }
  };

  #post(message) {
    this.element.contentWindow?.postMessage(message, "*"); // no origin could be named: it has none
  }

  #limit(milliseconds, failure) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#onfailed(failure), milliseconds);
  }
}

/** @type {Promise<Blob> | null} fetched once by the page: no cache keeps anything for frames without an origin */
let library = null;

function loadLibrary() {
  library ??= fetch(LIBRARY_URL).then((answer) => {
    if (!answer.ok) throw new Error(`${answer.status}`);
    return answer.blob();
  });
  library.catch(() => (library = null)); // the next diagram tries again
  return library;
}
