/** JSON set for reading: only the space between its parts changes, so that no long number is rounded. */

const LONGEST = 50_000; // characters
const DEEPEST = 64;
const LONGEST_LINE = 200;
const PIECES = /"(?:\\.|[^"\\])*"|[{}[\],:]|[^\s{}[\],:"]+/g;
const PLAIN_KEY = /^"[A-Za-z_][\w-]*"$/;

/** @param {string} text @returns {string | null} null for what is no JSON, or too much of it */
export function formatJson(text) {
  if (text.length > LONGEST || !isJson(text)) return null;
  let depth = 0;
  let set = "";
  let last = "";
  for (const [piece] of text.matchAll(PIECES)) {
    const closes = piece === "}" || piece === "]";
    const isFirst = last === "{" || last === "[";
    if (closes) depth -= 1;
    if (closes ? !isFirst : isFirst || last === ",") set += `\n${"  ".repeat(depth)}`;
    set += piece === ":" ? ": " : piece;
    if (piece === "{" || piece === "[") depth += 1;
    if (depth > DEEPEST) return null;
    last = piece;
  }
  return set;
}

/** An object in one line, without the braces around it; what is no JSON as it is. @param {string} text */
export function briefJson(text) {
  if (!/^\s*\{/.test(text)) return oneLine(text);
  let line = "";
  let key = "";
  for (const [piece] of text.slice(0, 4 * LONGEST_LINE).matchAll(PIECES)) {
    if (line.length > LONGEST_LINE) break;
    if (key !== "") line += piece === ":" && PLAIN_KEY.test(key) ? key.slice(1, -1) : key;
    key = piece.startsWith('"') ? piece : "";
    if (key === "") line += piece === ":" || piece === "," ? `${piece} ` : piece;
  }
  return oneLine((line + key).replace(/^\{/, "").replace(/\}$/, ""));
}

const oneLine = (text) => text.slice(0, LONGEST_LINE).replace(/\s+/g, " ").trim();

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
