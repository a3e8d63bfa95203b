import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { Socket } from "../../static/js/socket.js";

/** A socket on fake websockets and a fake clock; `random` always draws the longest wait. */
function newSocket(t, { random = () => 1 } = {}) {
  mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"] });
  t.after(() => mock.timers.reset());
  const websockets = [];
  const parts = { states: [], frames: [], opened: 0, visible: true };
  const socket = new Socket({
    random,
    visible: () => parts.visible,
    connect: () => {
      const websocket = { sent: [], send: (text) => websocket.sent.push(JSON.parse(text)), close() {} };
      websockets.push(websocket);
      return websocket;
    },
    onopen: () => (parts.opened += 1),
    onframe: (frame) => parts.frames.push(frame),
    onstate: (state) => parts.states.push(state),
  });
  const last = () => websockets.at(-1);
  const receive = (frame) => last().onmessage({ data: JSON.stringify(frame) });
  return { ...parts, parts, socket, websockets, last, receive, tick: (ms) => mock.timers.tick(ms) };
}

test("the first frame goes out at once, so that the server does not give up waiting", (t) => {
  const { socket, last, parts } = newSocket(t);
  socket.open();
  last().onopen();
  assert.deepEqual(last().sent, [{ type: "client.state", visible: true }]);
  assert.equal(parts.opened, 1);
});

test("frames before the connection are left to the outbox", (t) => {
  const { socket, last } = newSocket(t);
  socket.open();
  socket.send({ type: "stop" });
  last().onopen();
  assert.deepEqual(last().sent.filter(({ type }) => type === "stop"), []);
});

test("a lost connection is tried again with growing waits up to 20 s", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  for (const wait of [300, 600, 1200, 2400, 4800, 9600, 19_200, 20_000, 20_000]) {
    const before = websockets.length;
    last().onclose({ code: 1006, reason: "" });
    tick(wait - 1);
    assert.equal(websockets.length, before, `tried before ${wait} ms`);
    tick(1);
    assert.equal(websockets.length, before + 1, `not tried after ${wait} ms`);
  }
});

test("the waits are jittered", (t) => {
  const { socket, websockets, last, tick } = newSocket(t, { random: () => 0.5 });
  socket.open();
  last().onclose({ code: 1012, reason: "" });
  tick(150);
  assert.equal(websockets.length, 2);
});

test("after 30 s of connection the next trouble starts small again", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  last().onclose({ code: 1006 });
  tick(300);
  last().onclose({ code: 1006 });
  tick(600);
  last().onopen();
  tick(20_000);
  last().onmessage({ data: '{"type":"pong","t":0}' });
  tick(10_000);
  last().onclose({ code: 1006 });
  const before = websockets.length;
  tick(300);
  assert.equal(websockets.length, before + 1);
});

test("a ping goes out every 25 s, and silence for 10 s means a dead connection", (t) => {
  const { socket, websockets, last, tick, receive } = newSocket(t);
  socket.open();
  last().onopen();
  tick(25_000);
  assert.equal(last().sent.at(-1).type, "ping");
  receive({ type: "pong", t: 1 });
  tick(25_000);
  assert.equal(websockets.length, 1);
  tick(10_000);
  assert.equal(socket.state, "waiting");
  tick(300);
  assert.equal(websockets.length, 2);
});

test("the server's heartbeat replaces ours", (t) => {
  const { socket, last, tick, receive } = newSocket(t);
  socket.open();
  last().onopen();
  receive({ type: "connection.ready", heartbeat: { interval_ms: 1000, timeout_ms: 500 } });
  tick(1000);
  assert.equal(last().sent.at(-1).type, "ping");
  tick(500);
  assert.equal(socket.state, "waiting");
});

test("coming back to the page asks for a sign of life", (t) => {
  const { socket, last, parts } = newSocket(t);
  socket.open();
  last().onopen();
  parts.visible = false;
  socket.visibilityChanged();
  assert.deepEqual(last().sent.at(-1), { type: "client.state", visible: false });
  parts.visible = true;
  socket.visibilityChanged();
  assert.deepEqual(last().sent.slice(-2).map(({ type }) => type), ["client.state", "ping"]);
});

test("coming back while waiting connects at once", (t) => {
  const { socket, websockets, last } = newSocket(t);
  socket.open();
  last().onclose({ code: 1006 });
  socket.wake();
  assert.equal(websockets.length, 2);
});

test("a socket that was let go is not listened to any more", (t) => {
  const { socket, websockets, last, tick, parts } = newSocket(t);
  socket.open();
  last().onopen();
  const old = last();
  tick(25_000);
  tick(10_000);
  tick(300);
  assert.equal(websockets.length, 2);
  assert.equal(old.onmessage, null);
  assert.equal(old.onclose, null);
  assert.equal(parts.frames.length, 0);
});

for (const code of [1000, 1009, 4400, 4403, 4406, 4408, 4410]) {
  test(`close ${code} stays closed and says why`, (t) => {
    const { socket, websockets, last, tick } = newSocket(t);
    socket.open();
    last().onopen();
    last().onclose({ code, reason: "" });
    tick(60_000);
    assert.equal(socket.state, "stopped");
    assert.notEqual(socket.stoppedText, "");
    assert.equal(websockets.length, 1);
  });
}

for (const code of [1001, 1006, 1011, 1012, 1013, 4008]) {
  test(`close ${code} reconnects`, (t) => {
    const { socket, websockets, last, tick } = newSocket(t);
    socket.open();
    last().onopen();
    last().onclose({ code, reason: "" });
    tick(300);
    assert.equal(websockets.length, 2);
  });
}

test("close 4401 asks for a login", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  last().onclose({ code: 4401, reason: "token_expired" });
  tick(60_000);
  assert.equal(socket.state, "login");
  assert.equal(websockets.length, 1);
});

test("close 4429 waits as long as its reason says", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  last().onclose({ code: 4429, reason: "rate_limited;retry_after_ms=7000" });
  tick(6999);
  assert.equal(websockets.length, 1);
  tick(1);
  assert.equal(websockets.length, 2);
});

test("close 4500 reconnects five times and then gives up", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  for (let attempt = 0; attempt < 9; attempt += 1) {
    last().onclose?.({ code: 4500, reason: "" });
    tick(20_000);
  }
  assert.equal(websockets.length, 6);
  assert.equal(socket.state, "stopped");
});

test("a draining server is left at the moment it named", (t) => {
  const { socket, websockets, last, tick, receive } = newSocket(t);
  socket.open();
  last().onopen();
  receive({ type: "connection.draining", reconnect_after_ms: 4000 });
  tick(1000);
  last().onclose({ code: 1012, reason: "" });
  tick(2999);
  assert.equal(websockets.length, 1);
  tick(1);
  assert.equal(websockets.length, 2);
});
