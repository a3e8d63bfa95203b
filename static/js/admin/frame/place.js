/** Places in the console, and the part of the address after `#` that names them. */

/** @typedef {{tab: string, params: Readonly<Record<string, string>>}} Place */

/** @param {string} hash `#sessions?q=ada` @param {string[]} tabs the first one is where one is without a name @returns {Place} */
export function placeOf(hash, tabs) {
  const [name, search = ""] = hash.replace(/^#/, "").split(/\?(.*)/s);
  const tab = tabs.includes(name) ? name : tabs[0];
  return { tab, params: tab === name ? Object.fromEntries(new URLSearchParams(search)) : {} };
}

/** @param {string} tab @param {Record<string, string | null | undefined>} params what is empty is left out */
export function hashOf(tab, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.sort(([one], [other]) => (one < other ? -1 : 1)));
  return given.length ? `#${tab}?${search}` : `#${tab}`;
}
