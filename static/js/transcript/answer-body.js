/**
 * What an answer says, and the tools that it calls, in the order in which it has written them: pieces of its text, with
 * cards between them.
 */

import { Markdown } from "../markdown/markdown.js";
import { piecesOf } from "../state/tool-calls.js";
import { ToolCards } from "./tool-cards.js";

/** @typedef {import("../state/tool-calls.js").ToolCall} ToolCall */

export class AnswerBody {
  element = make("div", "answer-body");
  /** Whether its text is what goes on, and no call. */
  endsInText = false;
  /** @type {{prose: HTMLElement, markdown: Markdown, tools: ToolCards | null}[]} */
  #pieces = [];
  #deeds;

  /** @param {import("./tool-cards.js").CardDeeds} deeds */
  constructor(deeds) {
    this.#deeds = deeds;
  }

  /**
   * @param {string} text that is shown @param {boolean} final nothing is added any more
   * @param {ToolCall[]} calls @param {{goesOn: boolean, isLast: boolean, whole: number}} how whether the answer is
   *   still being written, whether nothing follows it, and how long all of its text is
   */
  draw(text, final, calls, how) {
    const pieces = piecesOf(text, calls, how.whole);
    this.endsInText = pieces.at(-1).text !== "" && pieces.at(-1).calls.length === 0;
    pieces.forEach((piece, place) => {
      const isLast = place === pieces.length - 1;
      const { prose, markdown } = (this.#pieces[place] ??= this.#add());
      prose.hidden = piece.text === "";
      prose.classList.toggle("goes-on", isLast && this.endsInText);
      markdown.update(piece.text, final || !isLast || piece.calls.length > 0);
      this.#drawTools(this.#pieces[place], piece.calls, how);
    });
    for (const { prose, tools } of this.#pieces.splice(pieces.length)) {
      prose.remove();
      tools?.element.remove();
    }
  }

  #add() {
    const prose = make("div", "prose");
    this.element.append(prose);
    return { prose, markdown: new Markdown(prose), tools: null };
  }

  /** An answer without calls has no place for them. */
  #drawTools(piece, calls, { goesOn, isLast }) {
    if (calls.length === 0 && piece.tools === null) return;
    if (piece.tools === null) {
      piece.tools = new ToolCards(this.#deeds);
      piece.prose.after(piece.tools.element);
    }
    piece.tools.draw(calls, goesOn, isLast);
  }
}

function make(name, className) {
  const element = document.createElement(name);
  element.className = className;
  return element;
}
