import assert from "node:assert/strict";
import test from "node:test";

import { Store } from "../../../static/js/connection/storage.js";
import { KeptUser } from "../../../static/js/connection/user.js";

function browser() {
  const [store, tab] = [new Store(null), new Store(null)];
  store.set("parley.draft.new", "Dear");
  store.set("parley.theme", "dark");
  tab.set("parley.queue-edit.itm_1", { text: "Or" });
  return { store, tab, user: new KeptUser(store, tab) };
}

test("who comes back finds what they had typed", () => {
  const { store, user } = browser();
  assert.equal(user.meet("ada"), true, "nobody was here before");
  assert.equal(user.meet("ada"), true);
  assert.equal(store.get("parley.draft.new"), "Dear");
});

test("another user finds the theme, and nothing else", () => {
  const { store, tab, user } = browser();
  user.meet("ada");
  assert.equal(user.meet("bob"), false);
  assert.equal(user.meet("bob"), true);
  assert.deepEqual([store.get("parley.draft.new"), ...tab.names("parley.")], [null]);
  assert.equal(store.get("parley.theme"), "dark");
});

test("a page that has known somebody knows the next one as another, although the browser forgot", () => {
  const { store, user } = browser();
  store.clear("parley.");
  assert.equal(user.meet("bob", "ada"), false);
});
