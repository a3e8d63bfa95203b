/** The question whether a tool may run, below what it would be given. The first answer counts, in whichever tab. */

import { lasting } from "../state/message.js";
import { briefJson } from "../widgets/json.js";
import { visibleName } from "../widgets/visible.js";

const WORDS = { allow: "Allow once", allow_session: "Allow in this chat", deny: "Deny" };
const COARSE_MS = 60_000; // until then whole minutes are shown, and nothing moves

export class Consent {
  element = make("div", "consent");
  #question = make("p", "consent-question");
  #tool = make("code");
  #why = make("p", "consent-why");
  #deeds = make("div", "consent-deeds");
  /** @type {Map<string, HTMLButtonElement>} by decision */
  #buttons = new Map();
  #run = null;
  #given = "";

  /** @param {(decision: string) => void} onanswer */
  constructor(onanswer) {
    this.#question.append("Allow this call of ", this.#tool, "?");
    for (const [decision, word] of Object.entries(WORDS)) {
      const button = make("button", decision === "allow" ? "primary" : "plain");
      button.type = "button";
      button.textContent = word;
      button.addEventListener("click", () => onanswer(decision));
      this.#buttons.set(decision, button);
      this.#deeds.append(button);
    }
    this.element.setAttribute("role", "group");
    this.element.hidden = true;
    this.element.append(this.#question, this.#why, this.#deeds);
  }

  /** @param {import("../state/tool-calls.js").ToolCall} call that waits for an answer */
  draw({ name, arguments: given, run }) {
    this.#run = run;
    this.#given = briefJson(given) === "" ? "without arguments" : "with the arguments above";
    this.element.ariaLabel = `Allow the call of ${visibleName(name)}?`;
    this.#tool.textContent = visibleName(name);
    this.#buttons.get("allow_session").hidden = run.consent !== "once";
    this.#deeds.hidden = run.said !== null;
    this.tick();
  }

  /** The time that is left. */
  tick() {
    const { server, expiresAt, said } = this.#run;
    const runs = `The server “${visibleName(server)}” runs it, ${this.#given}.`;
    const left = expiresAt === null ? null : Math.max(0, expiresAt - Date.now());
    const until = left === null ? "" : ` Without an answer it is denied in ${roughly(left)}.`;
    const words = said === null ? runs + until : said === "deny" ? "Denying…" : "Allowing…";
    if (this.#why.textContent !== words) this.#why.textContent = words;
  }
}

const roughly = (ms) => (ms > COARSE_MS ? `${Math.ceil(ms / COARSE_MS)} min` : lasting(ms));

function make(name, className = "") {
  const element = document.createElement(name);
  element.className = className;
  return element;
}
