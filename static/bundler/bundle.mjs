/**
 * Bundles the page for a wheel: writes into build/page/ what a server serves instead of static/. Of each page one style
 * sheet and few modules are left, minified, with source maps, under names that change with what is in them; what is
 * asked for later (colours, formulas) stays apart. Each text also lies there compressed, by brotli and gzip.
 */

import { execFileSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, gzipSync } from "node:zlib";

const HERE = dirname(fileURLToPath(import.meta.url));
const STATIC = dirname(HERE);
const BUILD = join(dirname(STATIC), "build");
const CACHE = join(BUILD, "esbuild");
const OUT = join(BUILD, "page"); // maps name the sources from here, and so do the hashes of all names
/** Pages of one bundle share files: more pages, and each needs more of them. A shared chat is read by strangers. */
const TOGETHER = [["index.html", "admin.html"], ["share.html"]];
const PAGES = TOGETHER.flat();
const WORKER = "js/markdown/highlight-worker.js";
const THEME = "js/widgets/theme-first.js"; // a classic script: it runs before the page is drawn
/** The pages that are not bundled name these, so they keep their names. */
const NAMED = ["css/colors.css", "css/layout.css", "css/reset.css", "js/login.js", THEME];
/** Pages without modules, and what the policy of a diagram's frame is made of. */
const COPIED = ["diagram.html", "share-refused.html", "favicon.svg", "vendor/manifest.json"];
const TEXTS = /\.(css|html|js|map|svg)$/;

/** esbuild of the version that package-lock.json pins, with its hash. */
function fetchEsbuild() {
  const require = createRequire(join(CACHE, "package.json"));
  const wanted = JSON.parse(readFileSync(join(HERE, "package.json"))).dependencies.esbuild;
  const found = join(CACHE, "node_modules", "esbuild", "package.json");
  if (!existsSync(found) || JSON.parse(readFileSync(found)).version !== wanted) {
    mkdirSync(CACHE, { recursive: true });
    for (const name of ["package.json", "package-lock.json"]) cpSync(join(HERE, name), join(CACHE, name));
    const options = ["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--silent"];
    execFileSync("npm", options, { cwd: CACHE, stdio: ["ignore", "ignore", "inherit"] });
  }
  return require("esbuild");
}

class Bundler {
  #esbuild;
  #names = new Map(); // address in a checkout -> address here, of what has another name here
  #bundled = new Set(); // files of static/ that stand in a bundle

  constructor(esbuild) {
    this.#esbuild = esbuild;
  }

  async bundle() {
    await this.#build([WORKER, THEME]); // first: the pages name what it becomes
    const markups = new Map(PAGES.map((name) => [name, readFileSync(join(STATIC, name), "utf8")]));
    const alias = importsOf(markups.get(PAGES[0]));
    for (const names of TOGETHER) {
      const modules = await this.#build(names.map((name) => entryOf(markups.get(name))), { alias });
      for (const name of names) await this.#writePage(name, markups.get(name), modules);
    }
    await this.#build(NAMED, { entryNames: "[dir]/[name]" });
    this.#copy();
    for (const path of filesBelow(OUT).filter((path) => /\.(html|js)$/.test(path))) checkAddresses(path);
    compress(OUT);
  }

  /** @returns {Promise<Map<string, string[]>>} each file that was written, and the modules that it imports at once */
  async #build(entryPoints, more = {}) {
    const { metafile } = await this.#esbuild.build({
      ...{ absWorkingDir: STATIC, outbase: STATIC, outdir: OUT, metafile: true, logLevel: "warning" },
      ...{ bundle: true, minify: true, sourcemap: true, format: "esm", splitting: true, charset: "utf8" },
      ...{ entryNames: "[dir]/[name]-[hash]", chunkNames: "js/[name]-[hash]", plugins: [this.#renaming()] },
      ...{ entryPoints, ...more },
    });
    for (const path of Object.keys(metafile.inputs)) this.#bundled.add(path);
    const place = (path) => relative(OUT, resolve(STATIC, path));
    const written = new Map();
    for (const [path, { entryPoint, imports }] of Object.entries(metafile.outputs)) {
      const atOnce = imports.filter(({ kind }) => kind === "import-statement");
      written.set(place(path), atOnce.map((one) => place(one.path)));
      if (entryPoint) this.#names.set(`/static/${entryPoint}`, `/static/${place(path)}`);
    }
    return written;
  }

  /** Our modules name files of the server by their addresses. */
  #renaming() {
    const rename = ({ path }) => ({ contents: this.#renamed(readFileSync(path, "utf8")) });
    return { name: "renaming", setup: (build) => build.onLoad({ filter: /\/js\/.*\.js$/ }, rename) };
  }

  #renamed(text) {
    return [...this.#names].reduce((done, [from, to]) => done.replaceAll(`"${from}"`, `"${to}"`), text);
  }

  /** A page names one style sheet instead of many, and the modules that its bundle is split into. */
  async #writePage(name, markup, modules) {
    const sheets = [...markup.matchAll(/<link rel="stylesheet" href="\/static\/([^"]+)"/g)];
    const contents = sheets.map(([, path]) => `@import "./${path}";`).join("");
    const entryNames = `css/${name.replace(".html", "")}-[hash]`;
    const stdin = { contents, loader: "css", resolveDir: STATIC };
    const [sheet] = [...(await this.#build([], { stdin, entryNames })).keys()].filter((path) => path.endsWith(".css"));
    const preloads = reachedFrom(this.#names.get(`/static/${entryOf(markup)}`).replace("/static/", ""), modules);
    const links = (rel, paths) => paths.map((path) => `    <link rel="${rel}" href="/static/${path}" />\n`).join("");
    const written = this.#renamed(markup)
      .replace(/ *<script type="importmap">[^]*?<\/script>\n/, "")
      .replace(/( *<link rel="stylesheet"[^>]*>\n)+/, links("stylesheet", [sheet]))
      .replace(/( *<link rel="modulepreload"[^>]*>\n)+/, links("modulepreload", preloads));
    writeFileSync(join(OUT, name), written);
  }

  /** What no bundle holds: libraries that are loaded later, the licences of all, and the rest. */
  #copy() {
    for (const name of COPIED) cpSync(join(STATIC, name), join(OUT, name));
    for (const path of filesBelow(join(STATIC, "vendor"))) {
      const place = relative(STATIC, path);
      const isPage = place.split("/").length > 2; // not what fetches the libraries
      if (isPage && !this.#bundled.has(place)) cpSync(path, join(OUT, place));
    }
  }
}

const entryOf = (markup) => /<script type="module" src="\/static\/([^"]+)"/.exec(markup)[1];

/** The libraries that a page's import map names. */
function importsOf(markup) {
  const { imports } = JSON.parse(/<script type="importmap">([^]*?)<\/script>/.exec(markup)[1]);
  return Object.fromEntries(Object.entries(imports).map(([name, path]) => [name, path.replace("/static", STATIC)]));
}

/** Every module that one needs before it can run, but for itself. */
function reachedFrom(entry, modules, reached = []) {
  for (const path of modules.get(entry)) {
    if (reached.includes(path)) continue;
    reached.push(path);
    reachedFrom(path, modules, reached);
  }
  return reached;
}

/** A file that is named by its address, and stands in no list above, would be missing in a wheel alone. */
function checkAddresses(path) {
  for (const [, place] of readFileSync(path, "utf8").matchAll(/["'`]\/static\/([\w./-]+)["'`]/g)) {
    const isThere = existsSync(join(OUT, place));
    if (!isThere) throw new Error(`${relative(OUT, path)} names /static/${place}, which is not there`);
  }
}

function compress(folder) {
  for (const path of filesBelow(folder)) {
    if (!TEXTS.test(path)) continue;
    const text = readFileSync(path);
    writeFileSync(`${path}.br`, brotliCompressSync(text)); // at its best, which is the default
    writeFileSync(`${path}.gz`, gzipSync(text, { level: 9 }));
  }
}

function filesBelow(folder) {
  const entries = readdirSync(folder, { recursive: true, withFileTypes: true });
  return entries.filter((entry) => entry.isFile()).map((entry) => join(entry.parentPath ?? entry.path, entry.name));
}

async function main() {
  rmSync(OUT, { recursive: true, force: true });
  await new Bundler(fetchEsbuild()).bundle();
}

main().catch((error) => {
  const isMissing = error.code === "ENOENT" && error.path === "npm";
  console.error(isMissing ? "To bundle the page, npm is needed: it fetches esbuild. (apt install npm)" : error.message);
  process.exitCode = 1;
});
