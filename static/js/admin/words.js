/** How the admin page says moments, spans and the names of workers. */

/** host-pid-random: the process distinguishes the workers of one host. */
export function shortReplica(replica) {
  const parts = replica.split("-");
  return parts.length < 3 ? replica : `${parts.slice(0, -2).join("-")} · ${parts.at(-2)}`;
}

export function duration(milliseconds) {
  const seconds = Math.floor(milliseconds / 1000);
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
  return `${clock(at)}, ${duration(Math.max(0, now - at))} ago`;
}

/** A sentence of what a server or a browser said. */
export function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
