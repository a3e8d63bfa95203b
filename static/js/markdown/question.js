/** What a user wrote, as nodes: no Markdown, but for fenced code. */

import { drawNear } from "../diagrams/diagrams.js";
import { codeFigure, highlightInView } from "./code.js";

const FENCES = /^(`{3,}|~{3,})([\w+#.-]*)[ \t]*\n([^]*?)^\1[ \t]*(?:\n|$)/gm;

/** @param {HTMLElement} element gets the text in place of its children @param {string} text */
export function drawQuestion(element, text) {
  const nodes = [];
  let place = 0;
  for (const { 0: fence, 2: language, 3: code, index } of text.matchAll(FENCES)) {
    nodes.push(text.slice(place, index).replace(/\n$/, ""), codeFigure(language, code));
    place = index + fence.length;
  }
  nodes.push(text.slice(place));
  element.replaceChildren(...nodes.filter((piece) => piece !== ""));
  for (const code of element.querySelectorAll("pre > code")) {
    highlightInView(code);
    drawNear(code);
  }
}
