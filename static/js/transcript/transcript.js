/**
 * The transcript: a conversation's messages as elements, drawn at most once per animation frame and
 * not at all while the page is hidden. It stands outside the shell's diff, so that a token costs the
 * block it lands in and nothing else.
 */

import { serveCode } from "../markdown/code.js";
import { shownMessages } from "../state/shown.js";
import { Answer, Instructions, Question } from "./bubble.js";
import { Pacer } from "./pacer.js";
import { Scroll } from "./scroll.js";

const BUBBLES = { user: Question, system: Instructions, developer: Instructions }; // of others: Answer

export class Transcript {
  /** @type {Map<string, Question | Instructions | Answer>} by message key */
  #bubbles = new Map();
  #chat;
  #log;
  #deeds;
  #switching = null; // to which branch, by which arrow
  #frame = 0;
  #shownId;
  #calm = matchMedia("(prefers-reduced-motion: reduce)");

  /**
   * @param {import("../state/chat.js").Chat} chat
   * @param {HTMLElement} scroller @param {HTMLElement} log holds the messages and nothing else
   * @param {object} page
   * @param {import("./actions.js").Action[]} page.actions what can be done with each message
   * @param {import("./edit.js").Edits} page.edits
   * @param {(message: object, text: string) => boolean} page.sendEdit
   * @param {() => void} page.onscroll the reader went up, or came back
   */
  constructor(chat, scroller, log, { onscroll, ...deeds }) {
    this.#chat = chat;
    this.#log = log;
    this.#deeds = { ...deeds, switchTo: (messageId, step) => this.#switchTo(messageId, step) };
    this.scroll = new Scroll(scroller, log, onscroll);
    serveCode(log);
  }

  /** Something about the conversation on screen changed. */
  changed() {
    this.#frame ||= requestAnimationFrame((now) => this.#draw(now));
  }

  /** New text came: paint it evenly from here. */
  grew(run, frame) {
    const answer = this.#bubbles.get(run.message.key) ?? this.#add(run.message);
    const first = frame.first_sequence_number ?? frame.sequence_number;
    answer.pacer ??= new Pacer(frame.text_offset, first - 1);
    const end = run.message.text.length;
    if (this.#calm.matches || document.hidden) answer.pacer.jump(end, run.last);
    else answer.pacer.push(end, run.last, performance.now());
    this.changed();
  }

  /** A text was replaced: show it at once, without replaying it. */
  replaced(run) {
    this.#bubbles.get(run.message.key)?.pacer?.jump(run.message.text.length, run.last);
    this.changed();
  }

  /** Stop painting `run` now. @returns what the user has seen of it, or null if none was painted here */
  freeze(run) {
    return this.#bubbles.get(run.message.key)?.pacer?.freeze() ?? null;
  }

  /** Draw without waiting for the next frame: a stop must be seen in the frame of the click. */
  drawNow() {
    cancelAnimationFrame(this.#frame);
    this.#draw(performance.now());
  }

  #draw(now) {
    this.#frame = 0;
    const id = this.#chat.currentId;
    if (id !== this.#shownId) this.#clear(id);
    const messages = shownMessages(this.#chat.current?.path ?? [], this.#chat.sendsOf(id));
    const first = this.#log.firstElementChild?.dataset.key;
    const older = messages.findIndex((message) => message.key === first) > 0;
    if (older) this.scroll.holding(() => this.#drawAll(messages, now));
    else this.#drawAll(messages, now);
    this.scroll.keep();
  }

  #drawAll(messages, now) {
    this.#arrange(messages);
    const { current } = this.#chat;
    const last = messages.at(-1);
    for (const message of messages) {
      const run = current?.runs.get(message.responseId);
      const siblings = message.unsent ? [] : current.siblings(message);
      const place = { message, siblings, isLast: message === last };
      if (this.#bubbles.get(message.key).draw(place, run, now)) this.changed();
    }
    this.#arrive();
  }

  #switchTo(messageId, step) {
    this.#switching = { messageId, step };
    this.scroll.stay();
    this.#chat.switchTo(messageId);
  }

  /** The branch that was asked for is there: its arrow has the focus in place of the one that went. */
  #arrive() {
    const { messageId, step } = this.#switching ?? {};
    const message = this.#chat.current?.find(messageId);
    if (!message) return;
    this.#switching = null;
    const { activeElement } = document;
    const isFree = activeElement === document.body || this.#log.contains(activeElement);
    if (isFree) this.#bubbles.get(message.key)?.branches.focus(step);
  }

  /** Put elements in the order of the messages; those that stay are not moved. */
  #arrange(messages) {
    let next = this.#log.firstElementChild;
    const kept = new Set();
    for (const message of messages) {
      const { element } = this.#bubbles.get(message.key) ?? this.#add(message);
      kept.add(message.key);
      if (element === next) next = next.nextElementSibling;
      else this.#log.insertBefore(element, next);
    }
    for (const [key, { element }] of this.#bubbles) {
      if (kept.has(key)) continue;
      element.remove();
      this.#bubbles.delete(key);
    }
  }

  #add(message) {
    const Bubble = BUBBLES[message.role] ?? Answer;
    const bubble = new Bubble(message, this.#deeds);
    this.#bubbles.set(message.key, bubble);
    return bubble;
  }

  #clear(id) {
    // A new chat that becomes a session keeps its one bubble: only a change of conversation clears.
    const continues = this.#shownId === null && this.#chat.sendsOf(id).length > 0;
    this.#shownId = id;
    this.#switching = null;
    if (continues) return;
    this.#log.replaceChildren();
    this.#bubbles.clear();
    this.scroll.toLatest();
  }
}
