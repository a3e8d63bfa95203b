/**
 * Finds the words of a programming language, off the page's thread. In: `{language, text}`. Out: the
 * text as a tree, each piece a string or `[scope, ...pieces]`, so that the page makes nodes and
 * never parses markup; null for a language we do not have.
 */

import highlight from "../../vendor/highlightjs-cdn-assets-11.12.0/core.js";

const LANGUAGES = new Set(
  (
    "bash c clojure cmake cpp csharp css dart diff dockerfile elixir erlang fortran fsharp go graphql groovy " +
    "haskell http ini java javascript json julia kotlin latex less lua makefile markdown matlab nginx objectivec " +
    "ocaml perl php powershell protobuf python r ruby rust scala scss sql swift typescript vbnet xml yaml"
  ).split(" "),
);
const ALIASES = {
  ...{ "c++": "cpp", "c#": "csharp", "f#": "fsharp", cc: "cpp", h: "c", hpp: "cpp", cs: "csharp", fs: "fsharp" },
  ...{ golang: "go", hs: "haskell", jl: "julia", kt: "kotlin", kts: "kotlin", pl: "perl", rb: "ruby", rs: "rust" },
  ...{ html: "xml", svg: "xml", md: "markdown", tex: "latex", toml: "ini", yml: "yaml", jsonc: "json" },
  ...{ js: "javascript", jsx: "javascript", mjs: "javascript", ts: "typescript", tsx: "typescript" },
  ...{ py: "python", python3: "python", sh: "bash", shell: "bash", console: "bash", zsh: "bash", ps1: "powershell" },
  ...{ docker: "dockerfile", make: "makefile", mk: "makefile", objc: "objectivec", proto: "protobuf", vb: "vbnet" },
  ...{ clj: "clojure", ex: "elixir", exs: "elixir", erl: "erlang", f90: "fortran", ml: "ocaml", gql: "graphql" },
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
