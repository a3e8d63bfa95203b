/** The tools that an answer has called, a card each: name, how it goes, and in a fold what it was given and gave back. */

import { lasting } from "../state/message.js";
import { stateOf } from "../state/tool-calls.js";
import { briefJson } from "../widgets/json.js";
import { visibleName, visibleOutput } from "../widgets/visible.js";
import { Consent } from "./consent.js";
import { ToolPart } from "./tool-part.js";

/** @typedef {import("../state/tool-calls.js").ToolCall} ToolCall */

/** @type {Record<import("../state/tool-calls.js").CallState, string>} */
const STATE_TEXTS = {
  writing: "Being written",
  waiting: "Waiting for its result",
  asked: "Asks you",
  running: "Running",
  done: "Done",
  failed: "Failed",
  invalid: "Not a valid call",
  cut: "Cut short",
  ended: "No result",
  denied: "Denied",
  stopped: "Stopped",
  unknown: "Outcome unknown",
};

/** Why a call has no result, by the code of its item. */
const CODE_TEXTS = {
  tool_unknown: "There is no such tool here.",
  tool_arguments_invalid: "The tool does not take these arguments.",
  tool_busy: "Too many calls are running. It has not run.",
  tool_server_unavailable: "Its server is not up. It has not run.",
  tool_not_started: "It has not run.",
  tool_timeout: "It took too long. It may have run.",
  tool_cancelled: "It was stopped. It may have run.",
  tool_failed: "Its server failed. It may have run.",
  tool_result_too_large: "It gave back too much.",
  tool_outcome_unknown: "It may have run. Nobody knows any more, and it is not run again.",
  tool_limit_reached: "It was called too often for one question.",
  tool_rounds_exceeded: "There were too many rounds of calls for one question.",
  tool_reported_error: "The tool says that it failed.",
  tool_consent_timeout: "Nobody has answered in time. It has not run.",
  tool_denied: "It has not run.",
};

const LONGEST_NAME = 200; // no tool has such a one, but a model may write it
const TICKING = new Set(["asked", "running"]);
const LONG_MS = 2000; // what is over sooner tells no time

/**
 * @typedef {object} CardDeeds what a card calls for
 * @property {(call: ToolCall, decision: string) => void} consent
 */

export class ToolCards {
  element = make("div", "tools");
  /** @type {Map<string, ToolCard>} by item id */
  #cards = new Map();
  #deeds;
  #timer = 0;

  /** @param {CardDeeds} deeds */
  constructor(deeds) {
    this.#deeds = deeds;
  }

  /**
   * @param {ToolCall[]} calls @param {boolean} goesOn the answer is being written
   * @param {boolean} isLast nothing follows it
   */
  draw(calls, goesOn, isLast) {
    const ids = new Set(calls.map(({ id }) => id));
    for (const [id, card] of this.#cards) if (!ids.has(id)) this.#drop(id, card);
    for (const call of calls) {
      const card = this.#cards.get(call.id) ?? this.#add(call.id);
      card.draw(call, stateOf(call, goesOn, isLast));
    }
    this.element.hidden = calls.length === 0;
    this.#keepTime();
  }

  /** Once a second, as long as something runs or waits on screen. */
  #keepTime() {
    const ticking = [...this.#cards.values()].filter((card) => card.isTicking);
    if (this.#timer !== 0 || ticking.length === 0) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      if (!this.element.isConnected) return;
      for (const card of ticking) card.tick();
      this.#keepTime();
    }, 1000);
  }

  #add(id) {
    const card = new ToolCard(this.#deeds);
    this.#cards.set(id, card);
    this.element.append(card.element);
    return card;
  }

  #drop(id, card) {
    card.element.remove();
    this.#cards.delete(id);
  }
}

class ToolCard {
  element = make("section", "tool");
  #fold = make("details");
  #head = make("summary", "tool-head");
  #name = make("code", "tool-name");
  #brief = make("code", "tool-brief");
  #state = make("span", "tool-state");
  #why = make("span", "tool-why");
  #given = new ToolPart("Arguments", visibleName);
  #result = new ToolPart("Result", visibleOutput);
  #nothing = make("p", "tool-nothing");
  #consent;
  #isChosen = false; // the reader has opened or closed it
  #drawn = "";
  #call = null;

  /** @param {CardDeeds} deeds */
  constructor(deeds) {
    const mark = make("span", "tool-mark");
    mark.ariaHidden = "true";
    this.#head.append(mark, this.#name, this.#brief, this.#state, this.#why);
    this.#head.addEventListener("click", () => (this.#isChosen = true));
    this.#nothing.textContent = "No arguments";
    this.#fold.append(this.#head, this.#nothing, this.#given.element, this.#result.element);
    this.#fold.addEventListener("toggle", () => this.#fill());
    this.#consent = new Consent((decision) => deeds.consent(this.#call, decision));
    this.element.setAttribute("role", "group");
    this.element.append(this.#fold, this.#consent.element);
  }

  /** @param {ToolCall} call @param {import("../state/tool-calls.js").CallState} state */
  draw(call, state) {
    const drawn = `${call.version} ${state}`;
    if (this.#drawn === drawn) return;
    this.#drawn = drawn;
    this.#call = call;
    const name = visibleName(call.name.slice(0, LONGEST_NAME)) + (call.name.length > LONGEST_NAME ? "…" : "");
    this.element.ariaLabel = `Tool ${name}`;
    this.element.dataset.state = state;
    put(this.#name, name);
    put(this.#brief, visibleName(briefJson(call.arguments)));
    put(this.#why, call.output === null ? "" : (CODE_TEXTS[call.run?.code] ?? ""));
    this.#given.text = briefJson(call.arguments) === "" ? "" : call.arguments;
    this.#given.isFinal = state !== "writing";
    this.#result.text = call.output ?? "";
    this.#drawConsent();
    this.tick();
    if (!this.#isChosen) this.#fold.open = state === "asked"; // who consents has seen to what
    this.#fill();
  }

  get isTicking() {
    return TICKING.has(this.element.dataset.state);
  }

  tick() {
    const { state } = this.element.dataset;
    const ms = state === "running" && this.#call.run.since !== null ? Date.now() - this.#call.run.since : 0;
    put(this.#state, STATE_TEXTS[state] + (ms < LONG_MS ? "" : ` · ${lasting(ms)}`));
    if (state === "asked") this.#consent.tick();
  }

  /** Buttons that go away leave the keyboard at the head of their card. */
  #drawConsent() {
    const { element } = this.#consent;
    const hadFocus = element.contains(document.activeElement);
    element.hidden = this.element.dataset.state !== "asked";
    if (!element.hidden) this.#consent.draw(this.#call);
    if (hadFocus && (element.hidden || this.#call.run.said !== null)) this.#head.focus({ preventScroll: true });
  }

  /** What is folded is made when it is opened: until then a growing text costs nothing. */
  #fill() {
    if (!this.#fold.open) return;
    this.#nothing.hidden = this.#given.text !== "";
    this.#given.draw();
    this.#result.draw();
  }
}

/** What stays the same is not written again: a selection in it would go. */
function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(name, className) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return element;
}
