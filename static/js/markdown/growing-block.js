/**
 * The open block of a growing text, where it is a long table or list: its finished rows and items are drawn
 * once and never parsed again, so that a frame costs the last one and not all of them.
 */

import { Lexer } from "marked";

import { morph } from "./morph.js";

const LEAST_PARTS = 12; // a shorter block is cheap enough as a whole
const TABLE_HEAD = /^[^\n]*\n[^\n]*\n/; // the names of the columns, and the line below them
const BLANK_LINE = /\n[ \t]*\n[ \t]*$/;

/**
 * @typedef {object} Parts what a part is drawn with
 * @property {"table" | "list"} kind
 * @property {boolean} loose whether the items of the list stand apart
 */

export class GrowingBlock {
  #parts;
  #head; // what a part needs before it to be parsed: the first two lines of a table
  #done; // the text of the parts that are finished, with the head
  #container;
  #open; // the element of the last part, which may still grow
  #draw;

  constructor(parts, { head, done, container, draw }) {
    this.#parts = parts;
    this.#head = head;
    this.#done = done;
    this.#container = container;
    this.#open = container.lastElementChild;
    this.#draw = draw;
  }

  /**
   * @param {object | null} token of marked's lexer: the block, which has just been drawn as a whole
   * @param {string} raw its text @param {HTMLElement} place where it was drawn
   * @param {(markdown: string, parts: Parts) => Element[]} draw parts as nodes
   * @returns {GrowingBlock | null} null for a block that stays whole
   */
  static of(token, raw, place, draw) {
    const kind = token?.type;
    if (kind !== "table" && kind !== "list") return null;
    const container = place.querySelector(kind === "table" ? "tbody" : "ul, ol");
    const count = (token.rows ?? token.items).length;
    if (count < LEAST_PARTS || container?.children.length !== count) return null;
    const head = kind === "table" ? TABLE_HEAD.exec(token.raw)[0] : "";
    const done = raw.slice(0, raw.length - lengthOfLast(token, raw));
    if (!raw.startsWith(token.raw.trimEnd())) return null; // the lexer has changed something
    return new GrowingBlock({ kind, loose: token.loose ?? false }, { head, done, container, draw });
  }

  /**
   * Draw what is new. @param {string} text of the block, and perhaps of others after it
   * @returns {boolean} false if the block has ended, or must be drawn again as a whole
   */
  update(text) {
    if (!text.startsWith(this.#done)) return false;
    const rest = text.slice(this.#done.length);
    const [token, ...others] = new Lexer().blockTokens(this.#head + rest);
    const isSame = token?.type === this.#parts.kind && others.every(({ type }) => type === "space");
    if (!isSame || this.#isLooser(token)) return false;
    const drawn = this.#draw(this.#head + rest, this.#parts);
    if (drawn.length !== (token.rows ?? token.items).length) return false;
    this.#put(drawn);
    this.#done = text.slice(0, text.length - lengthOfLast(token, rest));
    return true;
  }

  /** The first one is what has been open; the last one is open now. */
  #put([first, ...more]) {
    if (!first) return;
    morph(this.#open, first);
    if (more.length === 0) return;
    for (const element of [this.#open, ...this.#open.querySelectorAll(".caret")]) element.classList.remove("caret");
    this.#container.append(...more);
    this.#open = more.at(-1);
  }

  /** Then every item of the list stands apart, also those that are finished. */
  #isLooser({ loose }) {
    return !this.#parts.loose && (loose || BLANK_LINE.test(this.#done));
  }
}

/** How much of the end of the text the last row or item takes. */
function lengthOfLast({ type, items }, text) {
  if (type === "table") return text.length - (text.trimEnd().lastIndexOf("\n") + 1);
  return text.length - text.lastIndexOf(items.at(-1).raw.trimEnd());
}
