/** JSON set for reading: only the space between its parts changes, so that no long number is rounded. */

const LONGEST = 50_000; // characters
const DEEPEST = 64;
const PIECES = /"(?:\\.|[^"\\])*"|[{}[\],:]|[^\s{}[\],:"]+/g;

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

function isJson(text) {
  try {
    JSON.parse(text);
    return true;
  } catch {
    return false;
  }
}
