/** Patching nodes in place, so that a selection in them stays. */

import { Idiomorph } from "idiomorph";

const CALLBACKS = {
  /** A formula is styled by script alone: attributes of style would be refused, so it is kept or replaced. */
  beforeNodeMorphed(old, next) {
    if (!old.classList?.contains("formula") && !next.classList?.contains("formula")) return true;
    if (!old.isEqualNode(next)) old.replaceWith(next.cloneNode(true));
    return false;
  },
};

/** @param {Element} old becomes like `next` */
export function morph(old, next) {
  Idiomorph.morph(old, next, { callbacks: CALLBACKS });
}
