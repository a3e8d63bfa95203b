/**
 * A growing Markdown text as nodes. The text is cut into blocks; all but the last are frozen: drawn
 * once and never parsed again, so that a frame costs the last block and not the whole answer. The
 * open block is healed, parsed and patched in place, which keeps a selection in it.
 *
 * Model text becomes nodes through DOMPurify only. Raw HTML in it is shown, not parsed, but for a few tags
 * without attributes; images become links, because loading one would reveal the reader to its host.
 */

import DOMPurify from "dompurify";
import { Marked } from "marked";

import { drawNear } from "../diagrams/diagrams.js";
import { isClosed, LANGUAGE } from "../diagrams/source.js";
import { codeBlock, highlightInView } from "./code.js";
import { GrowingBlock } from "./growing-block.js";
import { heal } from "./heal.js";
import { harmless, openDetails, TAGS } from "./inline-html.js";
import { drawFormulas, mathExtensions } from "./math.js";
import { morph } from "./morph.js";

const SANITISER = {
  RETURN_DOM_FRAGMENT: true,
  ALLOWED_TAGS: [
    ...["a", "blockquote", "code", "del", "em", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol"],
    ...["p", "pre", "span", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul", ...TAGS],
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  ADD_URI_SAFE_ATTR: ["align", "start"], // no addresses: not held against the line above
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
};

/** What may become the mark of an item, or a rule, or a paragraph of its own: it waits for what comes next. */
const MARK_TO_COME = /(?<=\n)[ \t]*(?:[-*+]|\d{1,9}[.)]?)[ \t]*$/;

/** @param {{growing: boolean}} how `growing`: the text may go on */
function dialect(how) {
  return new Marked({
    gfm: true,
    breaks: true,
    extensions: mathExtensions(how),
    renderer: {
      html: ({ text, block }) => {
        const safe = harmless(text, escape);
        return block && !safe.startsWith("<") && safe.trim() !== "" ? `<p>${safe}</p>` : safe;
      },
      code({ text, lang, raw }) {
        if (lang?.split(/\s/)[0].toLowerCase() !== LANGUAGE || !isClosed(raw)) return false; // as marked writes it
        return `<pre><code class="language-${LANGUAGE} closed">${escape(text)}\n</code></pre>`;
      },
      image: ({ href, text }) => `<a href="${escape(href)}">${escape(text || href)}</a>`,
      checkbox: ({ checked }) => `<span class="box">${checked ? "☑" : "☐"} </span>`,
      listitem({ task, tokens }) {
        return `<li${task ? ' class="task"' : ""}>${this.parser.parse(tokens)}</li>\n`;
      },
      heading({ tokens, depth }) {
        const level = Math.min(6, depth + 1); // the page has its h1
        return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
      },
    },
  });
}

const finished = dialect({ growing: false });
const growing = dialect({ growing: true });

export class Markdown {
  #element;
  #frozen = ""; // the text of the blocks before the tail
  #tail = node("div", "tail");
  #whole = null; // the text, once it was final
  /** @type {GrowingBlock | null} the tail, where it is a long table or list */
  #long = null;

  /** @param {HTMLElement} element the message's body; nothing else may change its children */
  constructor(element) {
    this.#element = element;
    element.replaceChildren(this.#tail);
  }

  /**
   * Draw `text`. Unless `final`, its last block may still grow and stays open. A text that was final and goes on
   * all the same is drawn again: its end may be in the middle of a block.
   */
  update(text, final) {
    const clean = text.replace(/\r\n?/g, "\n");
    if (final && clean === this.#whole) return;
    if (this.#whole !== null) this.#restart();
    if (final) this.#whole = clean;
    if (!clean.startsWith(this.#frozen)) this.#restart();
    const rest = clean.slice(this.#frozen.length);
    const open = final ? rest : rest.replace(MARK_TO_COME, "");
    if (this.#long && !final && this.#long.update(open)) return;
    this.#long = null; // it has ended, or is another kind of list by now: once more as a whole
    const { blocks, last } = split(open, final ? finished : growing);
    const closed = final ? blocks : blocks.slice(0, -1);
    closed.forEach((raw) => this.#freeze(raw));
    const tail = final ? "" : (blocks.at(-1) ?? "");
    this.#patchTail(heal(tail), growing);
    if (!final) this.#long = GrowingBlock.of(last, tail, this.#tail, drawParts);
  }

  #restart() {
    this.#frozen = "";
    this.#long = this.#whole = null;
    this.#tail.replaceChildren();
    this.#element.replaceChildren(this.#tail);
  }

  /** The tail becomes the finished block; its nodes move out and are not touched again. */
  #freeze(raw) {
    this.#patchTail(raw, finished);
    this.#tail.querySelector(".caret")?.classList.remove("caret");
    for (const code of this.#tail.querySelectorAll("pre > code")) {
      highlightInView(code);
      if ("closed" in code.dataset) drawNear(code);
    }
    this.#tail.before(...this.#tail.childNodes);
    this.#frozen += raw;
  }

  #patchTail(markdown, marked) {
    const next = node("div", "tail");
    next.append(render(markdown, marked));
    lastLine(next).classList.add("caret");
    if (this.#tail.hasChildNodes()) morph(this.#tail, next);
    else this.#tail.append(...next.childNodes);
  }
}

/**
 * The raw texts of the blocks, and the token of the last one. Space after a block belongs to it, since a list
 * may continue after it; so does what stands between `<details>` and its end.
 */
function split(text, marked) {
  const blocks = [];
  let last = null;
  let open = 0;
  for (const token of marked.lexer(text, marked.defaults)) {
    const joins = blocks.length > 0 && (token.type === "space" || open > 0);
    if (joins) blocks[blocks.length - 1] += token.raw;
    else blocks.push(token.raw);
    last = open > 0 ? null : token.type === "space" ? last : token;
    if (token.type === "html") open = openDetails(token.raw, open);
  }
  return blocks.join("") === text ? { blocks, last } : { blocks: [text], last: null };
}

/** A part of a long block as nodes: rows of a table, items of a list. */
function drawParts(markdown, { kind, loose }) {
  const tokens = growing.lexer(heal(markdown), growing.defaults);
  for (const item of tokens[0].items ?? []) item.loose ||= loose;
  const fragment = dressed(growing.parser(tokens, growing.defaults));
  const parent = fragment.querySelector(kind === "table" ? "tbody" : "ul, ol");
  const parts = [...(parent?.children ?? [])];
  if (parts.length > 0) lastLine(parts.at(-1)).classList.add("caret");
  return parts;
}

function render(markdown, marked) {
  return dressed(marked.parser(marked.lexer(markdown, marked.defaults), marked.defaults));
}

/** Markup of the parser as nodes, as the page shows them. */
function dressed(markup) {
  const fragment = DOMPurify.sanitize(markup, SANITISER);
  for (const link of fragment.querySelectorAll("a")) {
    if (!link.hasAttribute("href")) link.replaceWith(...link.childNodes); // an address of a kind we refuse
    link.target = "_blank";
    link.rel = "noopener noreferrer";
  }
  drawFormulas(fragment);
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
  const goesOn = last && /^(UL|OL|LI|BLOCKQUOTE|DIV|TABLE|TBODY|TR|TD|P|H[2-6]|FIGURE|PRE|DETAILS)$/.test(last.tagName);
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
