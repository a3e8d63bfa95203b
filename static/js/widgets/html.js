/** `html` makes preact elements from template strings; it parses markup of ours only, never of a model. */

import htm from "htm";
import { h } from "preact";

export const html = htm.bind(h);
