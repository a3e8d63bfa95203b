/** The few HTML tags that models write in Markdown and that do no harm; all others are shown as text. */

export const TAGS = ["br", "details", "kbd", "mark", "sub", "summary", "sup", "u"];

const TAG = new RegExp(`^</?(?:${TAGS.join("|")})\\s*/?>$`, "i");
const PIECES = /<!--[^]*?-->|<[^<>]*>/g;

/** Keep tags without attributes and drop comments; `escape` the rest. */
export function harmless(html, escape) {
  let place = 0;
  let safe = "";
  for (const { 0: piece, index } of html.matchAll(PIECES)) {
    safe += escape(html.slice(place, index));
    if (TAG.test(piece)) safe += piece.toLowerCase();
    else if (!piece.startsWith("<!--")) safe += escape(piece);
    place = index + piece.length;
  }
  return safe + escape(html.slice(place));
}

/** How many `<details>` are open after this Markdown, if so many were before. */
export function openDetails(markdown, before = 0) {
  let open = before;
  for (const [tag] of markdown.matchAll(/^ {0,3}<(?:\/)?details\s*>/gim)) {
    open += tag.includes("/") ? -1 : 1;
  }
  return Math.max(0, open);
}
