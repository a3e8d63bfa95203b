/** The tools that an answer has called, a card each: name, how it went, and in folds what it was given and gave back. */

import { codeFigure, highlightInView } from "../markdown/code.js";
import { stateOf } from "../state/tool-calls.js";
import { formatJson } from "../widgets/json.js";

const STATE_TEXTS = { running: "Running", done: "Done", failed: "Failed", ended: "No result", waiting: "Waiting for its result" };

export class ToolCards {
  element = make("div", "tools");
  /** @type {Map<string, ToolCard>} by item id */
  #cards = new Map();

  /** @param {import("../state/tool-calls.js").ToolCall[]} calls @param {boolean} goesOn the answer is being written @param {boolean} isLast nothing follows it */
  draw(calls, goesOn, isLast) {
    const ids = new Set(calls.map(({ id }) => id));
    for (const [id, card] of this.#cards) if (!ids.has(id)) this.#drop(id, card);
    for (const call of calls) {
      const card = this.#cards.get(call.id) ?? this.#add(call.id);
      card.draw(call, stateOf(call, goesOn, isLast));
    }
  }

  #add(id) {
    const card = new ToolCard();
    this.#cards.set(id, card);
    this.element.append(card.element);
    return card;
  }

  #drop(id, card) {
    card.element.remove();
    this.#cards.delete(id);
  }
}

class ToolCard {
  element = make("section", "tool");
  #name = make("code", "tool-name");
  #state = make("span", "tool-state");
  #given = new Fold("Arguments", "Copy arguments");
  #result = new Fold("Result", "Copy result");
  #drawn = "";

  constructor() {
    const head = make("p", "tool-head");
    const mark = make("span", "tool-mark");
    mark.ariaHidden = "true";
    head.append(mark, this.#name, this.#state);
    this.element.setAttribute("role", "group");
    this.element.append(head, this.#given.element, this.#result.element);
  }

  draw(call, state) {
    const drawn = `${call.version} ${state}`;
    if (this.#drawn === drawn) return;
    this.#drawn = drawn;
    this.element.ariaLabel = `Tool ${call.name}`;
    this.element.dataset.state = state;
    this.#name.textContent = call.name;
    this.#state.textContent = STATE_TEXTS[state];
    this.#given.show(call.arguments, call.status !== "in_progress" || state !== "running");
    this.#result.show(call.output ?? "", true);
  }
}

/** What is folded is made when it is opened: until then a growing text costs nothing. */
class Fold {
  element = make("details", "");
  #copyLabel;
  #text = "";
  #isFinal = false;
  #figure = null;
  #made = ""; // what the figure was made of

  constructor(word, copyLabel) {
    this.#copyLabel = copyLabel;
    this.element.hidden = true;
    const summary = make("summary", "");
    summary.textContent = word;
    this.element.append(summary);
    this.element.addEventListener("toggle", () => this.#fill());
  }

  show(text, isFinal) {
    this.#text = text;
    this.#isFinal = isFinal;
    this.element.hidden = text === "";
    if (this.element.open) this.#fill();
  }

  #fill() {
    const made = `${this.#isFinal} ${this.#text}`;
    if (this.#made === made || !this.element.open) return;
    this.#made = made;
    const json = this.#isFinal ? formatJson(this.#text) : null;
    const figure = codeFigure(json === null ? "" : "json", json ?? this.#text);
    figure.querySelector(".copy-code").ariaLabel = this.#copyLabel;
    if (this.#figure) this.#figure.replaceWith(figure);
    else this.element.append(figure);
    this.#figure = figure;
    if (json !== null) highlightInView(figure.querySelector("code"));
  }
}

function make(name, className) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return element;
}
