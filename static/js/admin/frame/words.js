/** How the console says moments, spans, sizes and the names of workers. */

import { visibleName } from "../../widgets/visible.js";

/** host-pid-random: the process distinguishes the workers of one host. */
export function shortReplica(replica) {
  const parts = replica.split("-");
  return parts.length < 3 ? replica : `${parts.slice(0, -2).join("-")} · ${parts.at(-2)}`;
}

export function duration(milliseconds) {
  const seconds = Math.floor(Math.max(0, milliseconds) / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, "0")} s`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, "0")} min`;
}

/** The time of day where the reader is. */
export function clock(at) {
  return new Date(at).toLocaleTimeString("en-GB");
}

/** "12:03:44, 14 s ago" */
export function momentAndAge(at, now) {
  return `${clock(at)}, ${duration(now - at)} ago`;
}

/** "5 min ago", of what is minutes to years old. */
export function ago(at, now) {
  const seconds = Math.max(0, Math.floor((now - at) / 1000));
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}

/** "14 Mar 2026, 09:26" */
export function date(at) {
  const day = new Date(at).toLocaleDateString("en-GB", { day: "numeric", month: "short", year: "numeric" });
  return `${day}, ${clock(at).slice(0, 5)}`;
}

/** @param {number} bytes */
export function size(bytes) {
  if (bytes < 1000) return `${bytes} B`;
  const power = Math.min(4, Math.floor(Math.log10(bytes) / 3));
  return `${(bytes / 1000 ** power).toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

const NUMBERS = new Intl.NumberFormat("en");
export const count = (number) => NUMBERS.format(number);

/** What draws nothing although it is no white space: an empty pattern of Braille, and what joins or varies letters. */
const BLANK = /^[\s\u2800\u034f\ufe00-\ufe0f]*$/;

/** A chat's title as text that somebody can see, and press. @param {string | null} title null: not for this admin */
export function titleText(title) {
  if (title === null) return "Title hidden";
  return BLANK.test(title) ? "Untitled" : visibleName(title);
}

/** A sentence of what a server or a browser said. */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
