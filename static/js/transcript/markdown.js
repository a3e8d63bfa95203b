/**
 * A growing Markdown text as nodes. The text is cut into blocks; all but the last are frozen: drawn
 * once and never parsed again, so that a frame costs the last block and not the whole answer. The
 * open block is healed, parsed and patched in place, which keeps a selection in it.
 *
 * Model text becomes nodes through DOMPurify only. Raw HTML in it is shown, not parsed, and images
 * become links, because loading one would reveal the reader to its host.
 */

import DOMPurify from "dompurify";
import { Idiomorph } from "idiomorph";
import { Marked } from "marked";

import { codeBlock, highlightInView } from "./code.js";
import { heal } from "./heal.js";

const SANITISER = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    ...["a", "blockquote", "br", "code", "del", "em", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol"],
    ...["p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"], // no addresses: not held against the line above
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text, block }) => (block ? `<p>${escape(text)}</p>` : escape(text)),
    image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(6, depth + 1); // the page has its h1
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

export class Markdown {
  #element;
  #frozen = ""; // the text of the blocks before the tail
  #tail = node("div", "tail");

  /** @param {HTMLElement} element the message's body; nothing else may change its children */
  constructor(element) {
    this.#element = element;
    element.replaceChildren(this.#tail);
  }

  /** Draw `text`. Unless `final`, its last block may still grow and stays open. */
  update(text, final) {
    const clean = text.replace(/\r\n?/g, "\n");
    if (!clean.startsWith(this.#frozen)) this.#restart();
    const open = clean.slice(this.#frozen.length);
    const blocks = split(open);
    const closed = final ? blocks : blocks.slice(0, -1);
    closed.forEach((raw) => this.#freeze(raw));
    this.#patchTail(final ? "" : heal(blocks.at(-1) ?? ""));
  }

  #restart() {
    this.#frozen = "";
    this.#tail.replaceChildren();
    this.#element.replaceChildren(this.#tail);
  }

  /** The tail becomes the finished block; its nodes move out and are not touched again. */
  #freeze(raw) {
    this.#patchTail(raw);
    this.#tail.querySelector(".caret")?.classList.remove("caret");
    for (const child of this.#tail.querySelectorAll("pre > code")) highlightInView(child);
    this.#tail.before(...this.#tail.childNodes);
    this.#frozen += raw;
  }

  #patchTail(markdown) {
    const next = node("div", "tail");
    next.append(render(markdown));
    lastLine(next).classList.add("caret");
    if (this.#tail.hasChildNodes()) Idiomorph.morph(this.#tail, next);
    else this.#tail.append(...next.childNodes);
  }
}

/** The raw texts of the blocks; space after a block belongs to it, since a list may continue after
it. */ function split(text) {
  const blocks = [];
  for (const { type, raw } of marked.lexer(text, marked.defaults)) {
    if (type === "space" && blocks.length > 0) blocks[blocks.length - 1] += raw;
    else blocks.push(raw);
  }
  return blocks.join("") === text ? blocks : [text]; // a lexer that drops a character may not cut
}

function render(markdown) {
  const markup = marked.parser(marked.lexer(markdown, marked.defaults), marked.defaults);
  const fragment = DOMPurify.sanitize(markup, SANITISER);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) link.replaceWith(...link.childNodes); // an address of a kind we refuse
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  for (const pre of fragment.querySelectorAll("pre")) pre.replaceWith(codeBlock(pre));
  for (const table of fragment.querySelectorAll("table")) {
    const frame = node("div", "table");
    frame.tabIndex = 0; // a wide table scrolls, by keyboard too
    table.replaceWith(frame);
    frame.append(table);
  }
  for (const block of fragment.children) block.dir ||= "auto"; // each block as its own words want
  return fragment;
}

/** Where the next word will come: the innermost last block. */
function lastLine(element) {
  const last = element.lastElementChild;
  const goesOn = last && /^(UL|OL|LI|BLOCKQUOTE|DIV|TABLE|TBODY|TR|TD|P|H[2-6]|FIGURE|PRE)$/.test(last.tagName);
  if (goesOn) return lastLine(last);
  return last?.matches("pre > code") ? last : element;
}

function node(name, className) {
  const element = document.createElement(name);
  element.className = className;
  return element;
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };

function escape(text) {
  return text.replace(/[&<>"']/g, (character) => ENTITIES[character]);
}
