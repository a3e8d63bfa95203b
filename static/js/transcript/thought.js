/**
 * What the model thinks, in a fold. While it does, the last lines are shown, so that little moves when it goes on to its
 * answer and the fold closes; a reader who opens it gets all of it.
 */

import { Markdown } from "../markdown/markdown.js";

export class Thought {
  element = make("details", "reasoning");
  #summary = make("summary");
  /** @type {Markdown | null} made when there is something to read */
  #markdown = null;
  #isChosen = false; // the reader has opened or closed it
  #drawn = ""; // how far, and whether that was all

  constructor() {
    this.#summary.addEventListener("click", () => (this.#isChosen = true));
    this.element.addEventListener("toggle", () => this.#fill());
    this.element.append(this.#summary);
  }

  /** @param {import("../state/message.js").Message} message */
  draw(message) {
    this.message = message;
    this.element.hidden = message.reasoningText === "";
    if (this.element.hidden) return;
    if (this.#summary.textContent !== message.thoughtTitle) this.#summary.textContent = message.thoughtTitle;
    if (!this.#isChosen) this.element.open = message.thinking;
    this.element.classList.toggle("growing", message.thinking && !this.#isChosen);
    this.#fill();
  }

  /** What is folded away is drawn when it is opened. */
  #fill() {
    if (!this.element.open) return;
    const { reasoningText, thinking } = this.message;
    const drawn = `${thinking} ${reasoningText.length}`;
    if (this.#drawn === drawn) return;
    this.#drawn = drawn;
    this.#markdown ??= this.#make();
    this.#markdown.update(reasoningText, !thinking);
  }

  #make() {
    const body = make("div", "prose");
    this.element.append(body);
    return new Markdown(body);
  }
}

function make(name, className = "") {
  const element = document.createElement(name);
  element.className = className;
  return element;
}
