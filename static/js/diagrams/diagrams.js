/**
 * Diagrams in Mermaid's language: blocks of code whose picture is drawn once they come near what is read. Until it is
 * there, and where it fails, the source stands.
 */

import { themeChanged } from "../widgets/theme.js";
import { wordButton } from "../widgets/copy.js";
import { FAILURES, Frame } from "./frame.js";
import { LANGUAGE, LONGEST, nameOf } from "./source.js";
import { Turns } from "./turns.js";

const MOST_FRAMES = 16;
const REACH = "25%"; // of a screen, above and below what is in view

/** Draw the code of a finished block, if it is a diagram, once it comes near. @param {HTMLElement} code */
export function drawNear(code) {
  if (code.dataset.language?.toLowerCase() !== LANGUAGE) return;
  const diagram = new Diagram(code);
  if (code.textContent.length > LONGEST) return diagram.say("too long to be drawn");
  diagrams.set(diagram.figure, diagram);
  near.observe(diagram.figure);
}

class Diagram {
  #source;
  #frame = null;
  #place = document.createElement("div");
  #switch = wordButton("Source", "Show the source");
  #reason = document.createElement("span");

  constructor(code) {
    this.#source = code.textContent;
    this.figure = code.closest("figure");
    this.figure.classList.add("diagram");
    this.#place.className = "picture";
    this.#reason.className = "reason";
    this.#switch.ariaPressed = "false";
    this.#switch.addEventListener("click", () => {
      this.#switch.ariaPressed = String(this.figure.classList.toggle("as-source"));
    });
  }

  draw() {
    this.say("");
    this.figure.dataset.picture ??= "coming"; // one that was there before keeps its place
    this.#frame = new Frame(
      { source: this.#source, name: nameOf(this.#source) },
      { ondrawn: (height) => this.#show(height), onfailed: (failure) => this.#fail(failure) },
    );
    this.#place.append(this.#frame.element);
    this.figure.querySelector("pre").before(this.#place);
  }

  drop() {
    this.#frame?.end();
    this.#frame = null;
    if (this.figure.dataset.picture === "drawn") this.figure.dataset.picture = "away";
  }

  repaint() {
    this.#frame.paint();
  }

  /** Why there is no picture, after the name of the language. */
  say(reason) {
    this.#reason.textContent = reason;
    if (reason) this.figure.querySelector("figcaption > span").after(this.#reason);
    else this.#reason.remove();
  }

  #show(height) {
    this.#place.style.blockSize = `${height}px`;
    this.figure.dataset.picture = "drawn";
    this.figure.querySelector(".copy-code").before(this.#switch);
    turns.ends(this);
  }

  #fail(failure) {
    if (failure !== "away") near.unobserve(this.figure); // it would fail again
    // One that was too slow may still keep the process busy that all frames share: they all go, and it ends.
    if (failure === "slow") turns.restart(this);
    else turns.gives(this);
    delete this.figure.dataset.picture;
    this.#switch.remove();
    this.#place.remove();
    this.say(FAILURES[failure]);
  }
}

const turns = new Turns({
  most: MOST_FRAMES,
  isThere: (diagram) => diagram.figure.isConnected,
  draw: (diagram) => diagram.draw(),
  repaint: (diagram) => diagram.repaint(),
  drop: (diagram) => diagram.drop(),
});

/** @type {WeakMap<HTMLElement, Diagram>} */
const diagrams = new WeakMap();

const near = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const diagram = diagrams.get(target);
      if (isIntersecting) turns.comes(diagram);
      else if (target.isConnected) turns.leaves(diagram);
      else turns.gives(diagram);
    }
  },
  { scrollMargin: REACH }, // without it, in an older browser, a diagram is drawn when it is in view
);

themeChanged(() => turns.repaint());
