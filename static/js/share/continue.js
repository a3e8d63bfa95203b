/**
 * «Continue this chat»: who is signed in gets a copy as a chat of their own; everybody else comes to the page that
 * says how to sign in. Without scripts the link leads to that page, too.
 */

import * as api from "../connection/api.js";
import { newKey } from "../connection/protocol.js";
import { exportOf } from "./export.js";

/** @param {HTMLAnchorElement} link @param {(words: string) => void} say */
export function continueOnClick(link, say) {
  const key = newKey(); // so that a second click leads to the same chat
  let isBusy = false;
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    if (isBusy) return;
    isBusy = true;
    say("Copying the chat…");
    try {
      location.assign(await addressOfCopy(key));
      say("");
    } catch {
      say("The chat could not be copied. Try again later.");
    } finally {
      isBusy = false;
    }
  });
}

async function addressOfCopy(key) {
  const shared = await api.readShare(location.pathname.split("/").at(-1));
  try {
    const { id } = await api.importSession(JSON.stringify(exportOf(shared)), key);
    return `/#${id}`;
  } catch (error) {
    if (error instanceof api.SignedOut) return "/";
    throw error;
  }
}
