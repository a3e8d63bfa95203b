/** What the model thinks, in a fold: open while it does, closed once it goes on to its answer. */

export class Thought {
  element = make("details", "reasoning");
  #summary = make("summary");
  #body = make("p", "", { dir: "auto" });
  #isChosen = false; // the reader has opened or closed it

  constructor() {
    this.#summary.addEventListener("click", () => (this.#isChosen = true));
    this.element.append(this.#summary, this.#body);
  }

  /** @param {import("../state/message.js").Message} message */
  draw(message) {
    this.element.hidden = message.reasoningText === "";
    if (this.element.hidden) return;
    this.#summary.textContent = message.thoughtTitle;
    this.#body.textContent = message.reasoningText;
    if (!this.#isChosen) this.element.open = message.thinking;
  }
}

function make(name, className = "", properties = {}) {
  const element = document.createElement(name);
  element.className = className;
  return Object.assign(element, properties);
}
