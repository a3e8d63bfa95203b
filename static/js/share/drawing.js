/**
 * The messages of a share, which stand in the page as plain text: each becomes what the chat page shows. A share may
 * have two megabytes, so it is done in slices, from the top, where the reader begins.
 */

import { Markdown } from "../markdown/markdown.js";
import { drawQuestion } from "../markdown/question.js";
import { storedCalls, withOutputs } from "../state/tool-calls.js";
import { ToolCards } from "../transcript/tool-cards.js";

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
  if (element.matches(".calls")) return drawCalls(element);
  const text = element.textContent;
  element.classList.remove("source");
  if (element.matches(".bubble")) return drawQuestion(element, text);
  element.removeAttribute("dir"); // each block runs as its own words do
  new Markdown(element).update(text, true);
}

/** Nobody is asked anything here: the cards say what was called, and what became of it. */
function drawCalls(element) {
  const shown = [...element.children].map(({ children, dataset }, place) => {
    const part = (name) => [...children].find((child) => child.matches(`.call-${name}`))?.textContent;
    const named = { id: String(place), call_id: String(place) };
    const call = { ...named, type: "function_call", name: part("name"), arguments: part("arguments"), status: dataset.call };
    const output = { ...named, type: "function_call_output", output: part("output"), status: dataset.run, code: dataset.code };
    return { call, output, isRun: dataset.run !== undefined };
  });
  const runs = shown.filter(({ isRun }) => isRun).map(({ output }) => output);
  const calls = storedCalls(null, shown.map(({ call }) => call), runs);
  withOutputs(calls, shown.map(({ output }) => output).filter(({ output }) => output !== undefined));
  const cards = new ToolCards({ consent: () => {} });
  cards.draw(calls, false, false);
  element.replaceWith(cards.element);
}
