/** Figures as a reader wants them: rates, durations. */

/** @param {number} number per second */
export const rate = (number) => (number < 10 ? number.toFixed(1) : Math.round(number).toLocaleString("en"));

/** @param {number} ms */
export const duration = (ms) => (ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);
