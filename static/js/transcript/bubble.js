/**
 * One message on screen. A question is drawn once; an answer grows, paced, until it has ended, and
 * then gets the line that says how it went.
 */

import { endText, reasonText } from "../connection/protocol.js";
import { drawQuestion } from "../markdown/question.js";
import { goesOnByItself } from "../state/tool-calls.js";
import { ActionRow } from "./actions.js";
import { AnswerBody } from "./answer-body.js";
import { BranchSwitch } from "./branches.js";
import { editForm } from "./edit.js";
import { Thought } from "./thought.js";
import { wordButton } from "../widgets/copy.js";
import { duration, rate } from "../widgets/figures.js";

const QUEUE_TEXTS = {
  engine: "Waiting in line",
  session: "Waiting for the answer before",
  engine_waking: "The model wakes up",
  engine_restart: "The model restarts, then the answer goes on",
  takeover: "Another server process takes over",
  model_loading: "The model is being loaded",
};

/**
 * @typedef {object} Deeds what a bubble calls for
 * @property {import("./actions.js").Action[]} actions
 * @property {(messageId: string, step: number) => void} switchTo shows the branch of that message
 * @property {import("./edit.js").Edits} edits
 * @property {(run: object) => void} withdraw stops an answer that waits for its turn
 * @property {(message: object, text: string) => boolean} sendEdit
 * @property {(message: object, call: object, decision: string) => void} consent says whether a tool may run
 */

export class Question {
  #form = null;
  #deeds;

  /** @param {Deeds} deeds */
  constructor({ key }, deeds) {
    this.#deeds = deeds;
    this.element = make("article", "message question", { ariaLabel: "You said" });
    this.body = make("div", "bubble", { dir: "auto" });
    this.wait = make("span", "waiting", { textContent: "Not sent yet" });
    this.foot = make("footer", "foot");
    this.branches = new BranchSwitch(deeds.switchTo);
    this.row = new ActionRow(deeds.actions, "user", this);
    this.foot.append(this.wait, this.branches.element, this.row.element);
    this.element.append(this.body, this.foot);
    this.element.dataset.key = key;
  }

  /** @param {import("./actions.js").Place} place */
  draw(place) {
    const { message } = place;
    const drawn = nameOf(place);
    if (this.drawn === drawn) return false;
    const isFirst = this.drawn === undefined;
    this.drawn = drawn;
    this.message = message;
    const text = message.deleted ? "Deleted" : message.text;
    if (this.text !== text) drawQuestion(this.body, text); // or a selection in it would go
    this.text = text;
    this.element.classList.toggle("unsent", message.unsent === true);
    this.wait.hidden = message.unsent !== true;
    this.branches.draw(place);
    this.row.draw(place);
    if (isFirst && !message.unsent && this.#deeds.edits.textOf(message.id) !== null) this.#open();
    return false;
  }

  /** Put a field in the place of the bubble. */
  edit() {
    this.#open();
    const field = this.#form.querySelector("textarea");
    field.focus();
    field.setSelectionRange(field.value.length, field.value.length);
  }

  #open() {
    if (this.#form) return;
    const { edits, sendEdit } = this.#deeds;
    const { message } = this;
    const close = () => {
      edits.drop(message.id);
      this.#form.replaceWith(this.body);
      this.#form = null;
      this.element.classList.remove("editing");
      this.row.focus("Edit");
    };
    this.#form = editForm({
      text: edits.textOf(message.id) ?? message.text,
      oninput: (text) => edits.keep(message.id, text),
      onsend: (text) => sendEdit(message, text) && close(),
      oncancel: close,
    });
    this.body.replaceWith(this.#form);
    this.element.classList.add("editing");
  }
}

/** A program's instructions to the model before or between the questions: they have no actions. */
export class Instructions {
  /** @param {Deeds} deeds */
  constructor({ key }, deeds) {
    this.element = make("article", "message question instructions", { ariaLabel: "Instructions" });
    this.body = make("div", "bubble", { dir: "auto" });
    this.foot = make("footer", "foot");
    this.branches = new BranchSwitch(deeds.switchTo);
    this.foot.append(make("span", "figures", { textContent: "Instructions" }), this.branches.element);
    this.element.append(this.body, this.foot);
    this.element.dataset.key = key;
  }

  /** @param {import("./actions.js").Place} place */
  draw(place) {
    const { message } = place;
    const drawn = nameOf(place);
    if (this.drawn === drawn) return false;
    this.drawn = drawn;
    this.message = message;
    drawQuestion(this.body, message.deleted ? "Deleted" : message.text);
    this.branches.draw(place);
    return false;
  }
}

export class Answer {
  /** @type {import("./pacer.js").Pacer | null} present once text arrived while we watched */
  pacer = null;
  text = ""; // what is painted
  #unfinished = false;

  /** @param {Deeds} deeds */
  constructor({ key }, deeds) {
    this.element = make("article", "message answer", { ariaLabel: "Parley said" });
    this.note = make("p", "note");
    this.thought = new Thought();
    this.body = new AnswerBody({ consent: (call, decision) => deeds.consent(this.message, call, decision) });
    this.wait = make("p", "wait");
    this.withdraw = wordButton("Withdraw", "Withdraw the question that waits");
    this.withdraw.addEventListener("click", () => deeds.withdraw(this.run));
    this.facts = make("span", "facts");
    this.foot = make("footer", "foot");
    this.branches = new BranchSwitch(deeds.switchTo);
    this.row = new ActionRow(deeds.actions, "assistant", this);
    this.foot.append(this.branches.element, this.facts, this.row.element);
    this.element.append(this.note, this.thought.element, this.body.element, this.wait, this.withdraw, this.foot);
    this.element.dataset.key = key;
  }

  /**
   * @param {import("./actions.js").Place} place
   * @returns {boolean} whether another frame is needed to finish painting
   */
  draw(place, run, now) {
    const { message } = place;
    const drawn = nameOf(place);
    if (this.drawn === drawn && !this.#unfinished) return false;
    this.drawn = drawn;
    this.message = message;
    const paced = this.pacer !== null && !this.pacer.idle;
    const whole = message.visibleText;
    const shown = paced ? this.pacer.advance(now) : whole.length;
    this.text = whole.slice(0, onBoundary(whole, shown));
    const final = !message.streaming && this.text.length === whole.length;
    const how = { goesOn: message.streaming, isLast: place.isLast, whole: message.text.length };
    this.body.draw(this.text, final, message.toolCalls ?? [], how);
    this.#dress(place, run, final);
    this.#unfinished = this.text.length < whole.length;
    return this.#unfinished;
  }

  #dress(place, run, final) {
    const { message } = place;
    const stopping = run?.stopping ?? null;
    this.run = run;
    this.withdraw.hidden = final || stopping !== null || run?.queue?.reason !== "session";
    this.element.classList.toggle("streaming", !final && !stopping);
    this.element.ariaBusy = String(!final);
    this.note.hidden = message.omittedMessages === 0 && !message.deleted;
    this.note.textContent = message.deleted ? "Deleted" : "Earlier messages no longer fit and were left out";
    this.thought.draw(message);
    this.wait.hidden = final || (!stopping && (this.body.endsInText || isCarriedOut(message)));
    this.wait.textContent = waitText(run, stopping);
    this.wait.classList.toggle("thinking", this.wait.textContent === "");
    this.branches.draw(place);
    this.row.element.hidden = !final;
    const isStep = final && isOnTheWay(message, place.isLast);
    this.element.classList.toggle("step", isStep);
    this.facts.replaceChildren(...(isStep ? [] : final ? factNodes(message) : progressNodes(run)));
    if (final) this.row.draw(place);
  }
}

/** Whether its calls are what it waits for, and say so themselves. */
const isCarriedOut = ({ toolCalls }) => (toolCalls ?? []).some(({ run, output }) => run !== null && output === null);

/** Whether it has ended in calls that were answered, so that the figures below the answer after it are enough. */
function isOnTheWay(message, isLast) {
  if (message.toolCalls === null) return false;
  return goesOnByItself(message) || (!isLast && message.toolCalls.some(({ output }) => output !== null));
}

/** Changes when something has to be drawn again. */
const nameOf = ({ message, isLast, siblings }) => `${message.version} ${isLast} ${siblings}`;

function waitText(run, stopping) {
  if (stopping?.owner === "silent") {
    const seconds = Math.ceil((stopping.endsInMs ?? 0) / 1000);
    return `Stopping. The worker does not answer; ends in at most ${seconds} s`;
  }
  if (stopping || !run?.queue) return "";
  const { reason, position, eta_ms: eta, progress } = run.queue;
  const place = position > 0 && reason === "engine" ? `, ${position} ahead` : "";
  const time = eta > 0 ? `, about ${Math.ceil(eta / 1000)} s` : "";
  const share = progress > 0 ? `, ${Math.round(progress * 100)} %` : "";
  return (QUEUE_TEXTS[reason] ?? "Waiting") + place + share + time;
}

/** "Stopped" as a chip where it was, then the figures, joined by middle dots. */
function factNodes({ status, reason, timings, usage, durable }) {
  const chip = endText(status, reason);
  const words = [
    reasonText(reason),
    timings?.tokens_per_s ? `${rate(timings.tokens_per_s)} tokens/s` : "",
    timings?.ttft_ms ? `first token ${duration(timings.ttft_ms)}` : "",
    usage?.output_tokens ? tokens(usage.output_tokens) : "",
    durable ? "" : "not saved yet",
  ].filter(Boolean);
  const line = make("span", "figures", { textContent: words.join(" · ") });
  line.title = detailText(timings, usage);
  if (!chip) return [line];
  return [make("span", `chip ${status}`, { textContent: chip }), line];
}

const tokens = (count) => `${count.toLocaleString("en")} ${count === 1 ? "token" : "tokens"}`;

/** How fast it is being written. */
function progressNodes(run) {
  if (!run?.progress || run.stopping) return [];
  const { tokens_per_s: perSecond, output_tokens: count } = run.progress;
  const words = `${rate(perSecond)} tokens/s · ${tokens(count)}`;
  return [make("span", "figures", { textContent: words })];
}

function detailText(timings, usage) {
  return [
    usage?.input_tokens ? `${usage.input_tokens} tokens read` : "",
    usage?.cached_tokens ? `${usage.cached_tokens} of them from the cache` : "",
    timings?.queue_ms ? `queued ${duration(timings.queue_ms)}` : "",
    timings?.total_ms ? `${duration(timings.total_ms)} in all` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/** Never cut a character in two. */
function onBoundary(text, length) {
  const code = text.charCodeAt(length - 1);
  return code >= 0xd800 && code < 0xdc00 && length < text.length ? length + 1 : length;
}

function make(name, className, properties = {}) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return Object.assign(element, properties);
}
