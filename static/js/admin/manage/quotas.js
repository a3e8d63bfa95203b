/** Quotas as fields of a form hold them. */

/** What stands in a field of a number that may be missing: "" is null. */
export const numberOf = (text) => (String(text).trim() === "" ? null : Number(text));

/**
 * All quotas, which the server replaces together: what was changed in the form, and of the rest what holds now, because
 * another admin may have changed it meanwhile.
 * @param {Record<string, string | number>} values the fields
 * @param {Record<string, number | null>} [shown] when the form was opened @param {Record<string, number | null>} [now]
 */
export function quotasOf(values, shown = {}, now = shown) {
  return Object.fromEntries(
    ["tokens_per_day", "sessions", "answers"].map((name) => {
      const number = numberOf(values[name]);
      return [name, number === shown[name] ? now[name] : number];
    }),
  );
}
