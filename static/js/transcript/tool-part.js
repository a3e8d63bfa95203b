/** What a tool was given, or gave back: set as JSON where it is that; a long one is cut until all of it is wanted. */

import { codeFigure, highlightInView, showSource } from "../markdown/code.js";
import { wordButton } from "../widgets/copy.js";
import { formatJson } from "../widgets/json.js";
import { visibleName } from "../widgets/visible.js";

export class ToolPart {
  element = document.createElement("div");
  text = "";
  isFinal = true;
  #figure = codeFigure("", "");
  #code = this.#figure.querySelector("code");
  #more = wordButton("", "");
  #word;
  #visible;
  #drawn = "";

  /** @param {string} word above it @param {(text: string) => string} visible a text as it is shown */
  constructor(word, visible) {
    this.#word = word.toLowerCase();
    this.#visible = visible;
    this.#figure.classList.add("wrapped");
    this.#figure.querySelector("figcaption > span").textContent = word;
    for (const rare of this.#figure.querySelectorAll(".wrap-code, .save-code")) rare.remove();
    this.#figure.querySelector(".copy-code").ariaLabel = `Copy ${this.#word}`;
    this.#figure.querySelector("pre").ariaLabel = word;
    this.#more.classList.add("show-all");
    this.#more.addEventListener("click", () => this.#toggle());
    this.#show(false);
    this.element.className = "tool-part";
    this.element.append(this.#figure, this.#more);
    new ResizeObserver(() => this.#measure()).observe(this.#code);
  }

  draw() {
    this.element.hidden = this.text === "";
    const drawn = `${this.isFinal} ${this.text}`;
    if (this.#drawn === drawn || this.text === "") return;
    this.#drawn = drawn;
    const json = this.isFinal ? formatJson(this.text) : null;
    this.#code.textContent = json === null ? this.#visible(this.text) : visibleName(json);
    showSource(this.#code, json ?? this.text);
    delete this.#code.dataset.language;
    if (json === null) return;
    this.#code.dataset.language = "json";
    highlightInView(this.#code);
  }

  #toggle() {
    const isWhole = !this.element.classList.contains("whole");
    this.#show(isWhole);
    if (!isWhole) this.#figure.scrollIntoView({ block: "nearest" });
  }

  #show(isWhole) {
    this.element.classList.toggle("whole", isWhole);
    this.#more.textContent = isWhole ? "Show less" : "Show all";
    this.#more.ariaLabel = `${this.#more.textContent} of the ${this.#word}`;
    this.#more.ariaExpanded = String(isWhole);
  }

  /** Only what is higher than its place needs a button. */
  #measure() {
    const { scrollHeight, clientHeight } = this.#figure.querySelector("pre");
    this.#more.hidden = !this.element.classList.contains("whole") && scrollHeight <= clientHeight + 1;
  }
}
