/**
 * Formulas: found in Markdown by their delimiters, drawn by KaTeX, which is loaded with the first one. KaTeX
 * makes nodes; the page never parses markup of it. Until it is there, and where it fails, the source stands.
 */

const KATEX = "/static/vendor/katex-0.19.1/katex.js";
const KATEX_CSS = "/static/vendor/katex-0.19.1/katex.css";
const OPTIONS = { throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 };
const LONGEST = 5000; // characters of one formula
const MOST_KEPT = 500; // drawn formulas

const BLOCK = /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n+|$)/;
// A dollar is one: no space inside, and no digit after, or «$5 and $6» would be a formula.
const INLINE =
  /^(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\]|\\\(([^]+?)\\\)|\$(?!\s)((?:\\[^\n]|[^$\\\n])+?)(?<!\s)\$(?!\d))/;
const OPEN = /^(?:\$\$|\\\[|\\\()[^]*$/; // a formula whose end has not arrived
const BEGINS = /\$|\\\[|\\\(/;

const FORMULAS = /\$\$[^]+?\$\$|\\\[[^]+?\\\]|\\\([^]+?\\\)|\$(?!\s)(?:\\[^\n]|[^$\\\n])+?(?<!\s)\$(?!\d)/g;
const BEGUN = /\$\$|\\\[|\\\(/;

/** Markdown without its finished formulas, which are none of its emphasis. */
export const withoutFormulas = (text) => text.replace(FORMULAS, "");

/** Whether a formula has begun in it whose end is missing. */
export const hasOpenFormula = (text) => BEGUN.test(withoutFormulas(text));

/** Classes by which the formulas are found again in what the sanitiser has let through. */
const CLASS = { inline: "math-inline", display: "math-display", open: "math-open" };

/**
 * Extensions of marked.
 * @param {{growing: boolean}} how `growing`: the text may go on, so a formula may lack its end
 */
export function mathExtensions({ growing }) {
  const renderer = ({ tex, kind }) => {
    const code = `<code class="${CLASS[kind]}">${escape(tex)}</code>`;
    return kind === "inline" ? code : `<p>${code}</p>`;
  };
  const block = {
    name: "mathBlock",
    level: "block",
    start: (text) => text.match(/^ {0,3}(?:\$\$|\\\[)/m)?.index,
    tokenizer(text) {
      const found = BLOCK.exec(text);
      if (found) return { type: "mathBlock", raw: found[0], tex: found[1] ?? found[2], kind: "display" };
      if (!growing || !/^ {0,3}(?:\$\$|\\\[)/.test(text)) return undefined;
      return { type: "mathBlock", raw: text, tex: text, kind: "open" };
    },
    renderer,
  };
  const inline = {
    name: "mathInline",
    level: "inline",
    start: (text) => text.match(BEGINS)?.index,
    tokenizer(text) {
      const found = INLINE.exec(text);
      if (!found) {
        return growing && OPEN.test(text) ? { type: "mathInline", raw: text, tex: text, kind: "inline" } : undefined;
      }
      const [raw, dollars, brackets, parentheses, dollar] = found;
      const tex = dollars ?? brackets ?? parentheses ?? dollar;
      return { type: "mathInline", raw, tex, kind: raw.startsWith("$$") || brackets ? "displayed" : "inline" };
    },
    renderer: ({ raw, tex, kind }) => {
      const isOpen = raw === tex; // its delimiter stands in it
      const name = isOpen ? CLASS.open : kind === "displayed" ? CLASS.display : CLASS.inline;
      return `<code class="${name}">${escape(tex)}</code>`;
    },
  };
  return [block, inline];
}

/** Draw the formulas in a fragment that has passed the sanitiser. */
export function drawFormulas(fragment) {
  for (const code of fragment.querySelectorAll(`code.${CLASS.inline}, code.${CLASS.display}`)) draw(code);
}

/** @type {Map<string, Element>} drawn before: a formula in the open block is asked for in each frame */
const drawn = new Map();

function draw(code) {
  const isDisplay = code.classList.contains(CLASS.display);
  const tex = code.textContent;
  if (tex.length > LONGEST) return;
  if (!globalThis.katex) return void load();
  const name = `${isDisplay} ${tex}`;
  const known = drawn.get(name);
  if (known) return code.replaceWith(known.cloneNode(true));
  const place = document.createElement("span");
  place.className = isDisplay ? "formula display" : "formula";
  place.dir = "ltr";
  try {
    globalThis.katex.render(tex, place, { ...OPTIONS, displayMode: isDisplay });
  } catch (error) {
    code.title = String(error.message).slice(0, 200); // what is wrong with it
    code.classList.remove(CLASS.inline, CLASS.display);
    return;
  }
  if (drawn.size >= MOST_KEPT) drawn.clear();
  drawn.set(name, place.cloneNode(true));
  code.replaceWith(place);
}

let loading = null;

/** Once KaTeX is there, what waits for it is drawn, wherever it stands. */
function load() {
  loading ??= (async () => {
    const sheet = Object.assign(document.createElement("link"), { rel: "stylesheet", href: KATEX_CSS });
    document.head.append(sheet);
    await import(KATEX);
    drawFormulas(document);
  })().catch(() => (loading = null)); // the network is away: the next formula tries again
}

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

function escape(text) {
  return text.replace(/[&<>"]/g, (character) => ENTITIES[character]);
}
