/**
 * One message on screen. A question is drawn once; an answer grows, paced, until it has ended, and
 * then gets the line that says how it went.
 */

import { endText, reasonText } from "../connection/protocol.js";
import { actionRow } from "./actions.js";
import { Markdown } from "./markdown.js";

const QUEUE_TEXTS = {
  engine: "Waiting in line",
  session: "Waiting for the answer before",
  engine_waking: "The model wakes up",
  engine_restart: "The model restarts, then the answer goes on",
  takeover: "Another server process takes over",
};

export class Question {
  /** @param {import("./actions.js").Action[]} actions */
  constructor({ key }, actions) {
    this.element = make("article", "message question", { ariaLabel: "You said" });
    this.body = make("div", "bubble", { dir: "auto" });
    this.wait = make("span", "waiting", { textContent: "Not sent yet" });
    this.foot = make("footer", "foot");
    this.foot.append(this.wait, actionRow(actions, "user", this));
    this.element.append(this.body, this.foot);
    this.element.dataset.key = key;
  }

  draw(message) {
    if (this.drawn === message.version) return false;
    this.drawn = message.version;
    this.message = message;
    this.text = message.text;
    this.body.textContent = message.text;
    this.element.classList.toggle("unsent", message.unsent === true);
    this.wait.hidden = message.unsent !== true;
    return false;
  }
}

export class Answer {
  /** @type {import("./pacer.js").Pacer | null} present once text arrived while we watched */
  pacer = null;
  text = ""; // what is painted
  #unfinished = false;

  /** @param {import("./actions.js").Action[]} actions */
  constructor({ key }, actions) {
    this.element = make("article", "message answer", { ariaLabel: "Parley said" });
    this.note = make("p", "note");
    this.reasoning = make("details", "reasoning");
    this.reasoningBody = make("p", "", { dir: "auto" });
    this.reasoning.append(make("summary", "", { textContent: "Thinking" }), this.reasoningBody);
    this.body = make("div", "prose");
    this.wait = make("p", "wait");
    this.facts = make("span", "facts");
    this.foot = make("footer", "foot");
    this.foot.append(this.facts, actionRow(actions, "assistant", this));
    this.element.append(this.note, this.reasoning, this.body, this.wait, this.foot);
    this.element.dataset.key = key;
    this.markdown = new Markdown(this.body);
  }

  /** @returns {boolean} whether another frame is needed to finish painting */
  draw(message, run, now) {
    if (this.drawn === message.version && !this.#unfinished) return false;
    this.drawn = message.version;
    this.message = message;
    const paced = this.pacer !== null && !this.pacer.idle;
    const whole = message.visibleText;
    const shown = paced ? this.pacer.advance(now) : whole.length;
    this.text = whole.slice(0, onBoundary(whole, shown));
    const final = !message.streaming && this.text.length === whole.length;
    this.markdown.update(this.text, final);
    this.#dress(message, run, final);
    this.#unfinished = this.text.length < whole.length;
    return this.#unfinished;
  }

  #dress(message, run, final) {
    const stopping = run?.stopping ?? null;
    this.element.classList.toggle("streaming", !final && !stopping);
    this.element.ariaBusy = String(!final);
    this.note.hidden = message.omittedMessages === 0;
    this.note.textContent = "Earlier messages no longer fit and were left out";
    this.reasoning.hidden = message.reasoningText === "";
    this.reasoningBody.textContent = message.reasoningText;
    this.wait.hidden = final || (this.text !== "" && !stopping);
    this.wait.textContent = waitText(run, stopping);
    this.wait.classList.toggle("thinking", this.wait.textContent === "");
    this.foot.hidden = !final;
    if (final) this.facts.replaceChildren(...factNodes(message));
  }
}

function waitText(run, stopping) {
  if (stopping?.owner === "silent") {
    const seconds = Math.ceil((stopping.endsInMs ?? 0) / 1000);
    return `Stopping. The worker does not answer; ends in at most ${seconds} s`;
  }
  if (stopping || !run?.queue) return "";
  const { reason, position, eta_ms: eta } = run.queue;
  const place = position > 0 && reason === "engine" ? `, ${position} ahead` : "";
  const time = eta > 0 ? `, about ${Math.ceil(eta / 1000)} s` : "";
  return (QUEUE_TEXTS[reason] ?? "Waiting") + place + time;
}

/** "Stopped" as a chip where it was, then the figures, joined by middle dots. */
function factNodes({ status, reason, timings, usage, durable }) {
  const chip = endText(status, reason);
  const words = [
    reasonText(reason),
    timings?.tokens_per_s ? `${round(timings.tokens_per_s)} tokens/s` : "",
    timings?.ttft_ms ? `first token ${seconds(timings.ttft_ms)}` : "",
    usage?.output_tokens ? `${usage.output_tokens.toLocaleString("en")} tokens` : "",
    durable ? "" : "not saved yet",
  ].filter(Boolean);
  const line = make("span", "figures", { textContent: words.join(" · ") });
  line.title = detailText(timings, usage);
  if (!chip) return [line];
  return [make("span", `chip ${status}`, { textContent: chip }), line];
}

function detailText(timings, usage) {
  return [
    usage?.input_tokens ? `${usage.input_tokens} tokens read` : "",
    usage?.cached_tokens ? `${usage.cached_tokens} of them from the cache` : "",
    timings?.queue_ms ? `queued ${seconds(timings.queue_ms)}` : "",
    timings?.total_ms ? `${seconds(timings.total_ms)} in all` : "",
  ]
    .filter(Boolean)
    .join(", ");
}

/** Never cut a character in two. */
function onBoundary(text, length) {
  const code = text.charCodeAt(length - 1);
  return code >= 0xd800 && code < 0xdc00 && length < text.length ? length + 1 : length;
}

const round = (number) => (number < 10 ? number.toFixed(1) : Math.round(number).toLocaleString("en"));
const seconds = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

function make(name, className, properties = {}) {
  const element = document.createElement(name);
  if (className) element.className = className;
  return Object.assign(element, properties);
}
