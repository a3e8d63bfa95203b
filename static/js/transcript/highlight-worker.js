/**
 * Finds the words of a programming language, off the page's thread. In: `{language, text}`. Out: the
 * text as a tree, each piece a string or `[scope, ...pieces]`, so that the page makes nodes and
 * never parses markup; null for a language we do not have.
 */

import highlight from "../../vendor/highlightjs-cdn-assets-11.12.0/core.js";

const LANGUAGES = new Set(
  "bash c cpp css diff go java javascript json markdown python rust sql typescript xml yaml".split(" "),
);
const ALIASES = {
  "c++": "cpp",
  golang: "go",
  html: "xml",
  js: "javascript",
  jsx: "javascript",
  md: "markdown",
  py: "python",
  python3: "python",
  rs: "rust",
  sh: "bash",
  shell: "bash",
  ts: "typescript",
  tsx: "typescript",
  yml: "yaml",
  zsh: "bash",
};

let last = Promise.resolve(); // answers keep the order of the questions

self.onmessage = ({ data }) => {
  last = last.then(() => tree(data)).then(
    (answer) => self.postMessage(answer),
    () => self.postMessage(null),
  );
};

async function tree({ language, text }) {
  const name = ALIASES[language.toLowerCase()] ?? language.toLowerCase();
  if (!LANGUAGES.has(name)) return null;
  if (!highlight.getLanguage(name)) {
    const folder = "../../vendor/highlightjs-cdn-assets-11.12.0/languages";
    const module = await import(`${folder}/${name}.js`);
    highlight.registerLanguage(name, module.default);
  }
  const result = highlight.highlight(text, { language: name, ignoreIllegals: true });
  return result._emitter.rootNode.children.map(piece);
}

function piece(child) {
  return typeof child === "string" ? child : [child.scope ?? "", ...child.children.map(piece)];
}
