/**
 * Close what a half-arrived Markdown block has left open, so that `**bold` is shown bold while it
 * streams and not as two stars that vanish later. Works on the open last block only; fences need no
 * help, because a lexer takes an unclosed one as code to the end.
 */

import { hasOpenFormula, withoutFormulas } from "./math.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const SETEXT = /\n[ \t]*(-+|=+)[ \t]*$/; // a list item or a rule about to come, not a heading
const LINK = /!?\[([^\]\n]*)(\](\([^)\n]*)?)?$/; // a link without its end: show its text
const LONE_MARKERS = /(^|\s)(\*{1,3}|_{1,3}|~{2})$/; // opened, but nothing to emphasise yet

/** @param {string} text the open block @returns {string} the same block, well formed for now */
export function heal(text) {
  if (FENCE.test(text)) return text;
  const settled = text.replace(SETEXT, "");
  if (hasOpenFormula(settled.replace(/(`+)[^`]+\1/g, ""))) return settled; // shown as its source until it ends
  const ticks = openTicks(settled);
  if (ticks) return settled.endsWith(ticks) ? settled.slice(0, -ticks.length) : settled + ticks;
  const linked = settled.replace(LINK, "$1").replace(LONE_MARKERS, "$1");
  return linked + openEmphasis(linked);
}

/** The run of backticks that opened a code span and was not closed; empty if none. */
function openTicks(text) {
  let open = "";
  for (const [ticks] of text.matchAll(/`+/g)) {
    if (open === "") open = ticks;
    else if (ticks === open) open = "";
  }
  return open;
}

/** The emphasis markers still open, in the order that closes them. */
function openEmphasis(text) {
  const open = [];
  const plain = withoutFormulas(text.replace(/(`+)[^`]+\1/g, "")).replace(/\\[*_~]/g, "");
  for (const match of plain.matchAll(/\*\*|\*|~~|(?<![\p{L}\p{N}])_{1,2}|_{1,2}(?![\p{L}\p{N}])/gu)) {
    const [marker] = match;
    const before = plain[match.index - 1] ?? " ";
    const after = plain[match.index + marker.length] ?? " ";
    if (open.at(-1) === marker && /\S/.test(before)) open.pop();
    else if (/\S/.test(after)) open.push(marker);
  }
  return completed(plain, open.reverse().join(""));
}

/** Half of a closing `**` has arrived: add only the other half. */
function completed(text, closing) {
  const half = closing.startsWith("**") && text.endsWith("*") && !text.endsWith("**");
  return half ? closing.slice(1) : closing;
}
