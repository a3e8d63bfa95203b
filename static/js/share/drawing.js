/**
 * The messages of a share, which stand in the page as plain text: each becomes what the chat page shows. A share may
 * have two megabytes, so it is done in slices, from the top, where the reader begins.
 */

import { Markdown } from "../markdown/markdown.js";
import { drawQuestion } from "../markdown/question.js";

const SLICE_MS = 12;

export class Drawing {
  #waiting;

  /** @param {HTMLElement} log holds the messages */
  constructor(log) {
    this.#waiting = [...log.querySelectorAll(".source")];
  }

  /** Draw until all is done, and let the page live meanwhile. */
  async run() {
    while (this.#waiting.length > 0) {
      const end = performance.now() + SLICE_MS;
      while (this.#waiting.length > 0 && performance.now() < end) draw(this.#waiting.shift());
      await new Promise((resolve) => setTimeout(resolve));
    }
  }

  /** Draw the rest at once: it goes on paper. */
  finish() {
    this.#waiting.splice(0).forEach(draw);
  }
}

function draw(element) {
  const text = element.textContent;
  element.classList.remove("source");
  if (element.matches(".bubble")) return drawQuestion(element, text);
  element.removeAttribute("dir"); // each block runs as its own words do
  new Markdown(element).update(text, true);
}
