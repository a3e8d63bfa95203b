/** What a user wrote, as nodes: no Markdown, but for fenced code. */

import { drawNear } from "../diagrams/diagrams.js";
import { codeFigure, highlightInView } from "./code.js";

const FENCES = /^(`{3,}|~{3,})([\w+#.-]*)[ \t]*\n([^]*?)^\1[ \t]*(?:\n|$)/gm;

/** @param {HTMLElement} element gets the text in place of its children @param {string} text */
export function drawQuestion(element, text) {
  const nodes = [];
  let place = 0;
  // A block of code keeps its distance by itself: empty lines beside it would double that.
  const upTo = (end) => text.slice(place, end).replace(place > 0 ? /^\n+/ : "", "");
  for (const { 0: fence, 2: language, 3: code, index } of text.matchAll(FENCES)) {
    nodes.push(upTo(index).replace(/\n+$/, ""), codeFigure(language, code));
    place = index + fence.length;
  }
  nodes.push(upTo(text.length));
  element.replaceChildren(...nodes.filter((piece) => piece !== ""));
  for (const code of element.querySelectorAll("pre > code")) {
    highlightInView(code);
    drawNear(code);
  }
}
