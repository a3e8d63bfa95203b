/**
 * Code blocks: a caption with the language and what one does with the code, and colours. Colours come late and
 * from a worker that is loaded with the first block: only for finished blocks, only when in view.
 */

import { copyFrom, wordButton } from "../widgets/copy.js";

const WORKER_URL = "/static/js/markdown/highlight-worker.js";
const LONGEST_HIGHLIGHT = 50_000; // characters; beyond it plain text is good enough
const EXTENSIONS = {
  ...{ bash: "sh", csharp: "cs", javascript: "js", julia: "jl", kotlin: "kt", markdown: "md", matlab: "m" },
  mermaid: "mmd",
  ...{ python: "py", ruby: "rb", rust: "rs", typescript: "ts" },
};

/** Dress a bare `<pre><code class="language-x">` as a figure with a caption. */
export function codeBlock(pre) {
  const code = pre.querySelector("code") ?? pre;
  const figure = codeFigure(/language-([\w+#.-]+)/.exec(code.className)?.[1] ?? "", code.textContent);
  if (code.classList.contains("closed")) figure.querySelector("code").dataset.closed = "";
  return figure;
}

/** @param {string} language as it was written, or "" @param {string} text */
export function codeFigure(language, text) {
  const plain = document.createElement("code");
  plain.textContent = text;
  if (language) plain.dataset.language = language;

  const label = document.createElement("span");
  label.textContent = language || "text";
  const caption = document.createElement("figcaption");
  const buttons = document.createElement("span");
  buttons.className = "code-buttons";
  buttons.append(
    button("wrap-code", "Wrap", "Wrap long lines"),
    button("save-code", "Save", "Save code as a file"),
    button("copy-code", "Copy", "Copy code"),
  );
  caption.append(label, buttons);

  const scroller = document.createElement("pre");
  scroller.tabIndex = 0; // long lines scroll, by keyboard too
  scroller.append(plain);
  const figure = document.createElement("figure");
  figure.className = "code";
  figure.dir = "ltr"; // in every text around it
  figure.append(caption, scroller);
  return figure;
}

/** @type {WeakMap<HTMLElement, string>} what is copied of code that is shown in other letters */
const sources = new WeakMap();

/** @param {HTMLElement} code @param {string} source what it stands for */
export function showSource(code, source) {
  if (source === code.textContent) sources.delete(code);
  else sources.set(code, source);
}

function button(className, word, label) {
  const made = wordButton(word, label);
  made.classList.add(className);
  return made;
}

/** One listener serves all blocks of code in `root`: a patched block keeps old nodes for new ones. */
export function serveCode(root) {
  root.addEventListener("click", ({ target }) => {
    const pressed = target.closest?.("figure.code .word-button");
    const figure = pressed?.closest("figure.code");
    const code = figure?.querySelector("code");
    if (pressed?.matches(".copy-code")) copyFrom(pressed, sources.get(code) ?? code.textContent);
    if (pressed?.matches(".save-code")) save(code);
    if (pressed?.matches(".wrap-code")) pressed.ariaPressed = String(figure.classList.toggle("wrapped"));
  });
}

function save(code) {
  const { language = "" } = code.dataset;
  const name = language.toLowerCase();
  const extension = EXTENSIONS[name] ?? (/^[a-z]{1,5}$/.test(name) ? name : "txt");
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([code.textContent], { type: "text/plain" }));
  link.download = `code.${extension}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

/** Colour a finished block once it comes into view. */
export function highlightInView(code) {
  if (code.dataset.language && code.textContent.length <= LONGEST_HIGHLIGHT) inView.observe(code);
}

const inView = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (!isIntersecting) continue;
    inView.unobserve(target);
    worker ??= startWorker();
    waiting.push(target);
    worker.postMessage({ language: target.dataset.language, text: target.textContent });
  }
});

let worker = null;
const waiting = []; // blocks in the order they were posted; the worker answers in that order

function startWorker() {
  const policy = globalThis.trustedTypes?.createPolicy("parley", {
    createScriptURL: (url) => {
      if (url !== WORKER_URL) throw new TypeError(`not a worker of this page: ${url}`);
      return url;
    },
  });
  const url = policy ? policy.createScriptURL(WORKER_URL) : WORKER_URL;
  const started = new Worker(url, { type: "module" });
  started.onmessage = ({ data }) => {
    const code = waiting.shift();
    if (data) code.replaceChildren(...data.map(colouredNode));
  };
  return started;
}

/** A piece of code from the worker: a string, or `[scope, ...pieces]`. */
function colouredNode(piece) {
  if (typeof piece === "string") return document.createTextNode(piece);
  const [scope, ...pieces] = piece;
  const span = document.createElement("span");
  if (scope) span.className = `hl-${scope.split(".")[0]}`;
  span.append(...pieces.map(colouredNode));
  return span;
}
