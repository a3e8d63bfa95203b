/**
 * Strangers' words as they are shown: what turns the order of letters around or takes no room is written out, so that
 * a name, or what a user consents to, cannot look like another one.
 */

/** Controls but for tab and line feed, formats, fillers that draw nothing. */
const HIDDEN = /[\p{Cf}\u2028\u2029\u115f\u1160\u3164\uffa0]|[^\P{Cc}\t\n]/gu;
/** In a text that is read, joiners belong to letters and to pictures, and marks of direction to scripts. */
const IN_WORDS = /[^\P{Cf}\u00ad\u200c-\u200f\u061c\ufeff\u{e0020}-\u{e007f}]|[^\P{Cc}\t\n]/gu;
/** What programs write to terminals: colours, and where the cursor goes. */
const TERMINAL = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\))/g;

/** A name, or JSON, of which this is another way to write the same. */
export function visibleName(text) {
  return text.replace(HIDDEN, escaped);
}

/** What a tool gave back, without the colours of a terminal. */
export function visibleOutput(text) {
  return text.replace(/\r\n?/g, "\n").replace(TERMINAL, "").replace(IN_WORDS, escaped);
}

/** `\u202e`, as JSON writes it. */
function escaped(character) {
  return Array.from({ length: character.length }, (_, place) =>
    `\\u${character.charCodeAt(place).toString(16).padStart(4, "0")}`).join("");
}
