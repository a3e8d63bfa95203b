/**
 * Code blocks: a caption with the language and a Copy button, and colours. Colours come late and
 * from a worker that is loaded with the first block: only for finished blocks, only when in view.
 */

import { copyCodeButton } from "./copy.js";

const WORKER_URL = "/static/js/transcript/highlight-worker.js";
const LONGEST_HIGHLIGHT = 50_000; // characters; beyond it plain text is good enough

/** Dress a bare `<pre><code class="language-x">` as a figure with a caption. */
export function codeBlock(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = /language-([\w+#.-]+)/.exec(code.className)?.[1] ?? "";
  const plain = document.createElement("code");
  plain.textContent = code.textContent;
  if (language) plain.dataset.language = language;

  const label = document.createElement("span");
  label.textContent = language || "text";
  const caption = document.createElement("figcaption");
  caption.append(label, copyCodeButton());

  const scroller = document.createElement("pre");
  scroller.tabIndex = 0; // long lines scroll, by keyboard too
  scroller.append(plain);
  const figure = document.createElement("figure");
  figure.className = "code";
  figure.dir = "ltr"; // whatever the text around it is
  figure.append(caption, scroller);
  return figure;
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
