import assert from "node:assert/strict";
import { mock, test } from "node:test";

import { Socket } from "../../../static/js/connection/socket.js";

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

/** An open connection that is lost. */
function lose({ socket, last }, code = 1006) {
  socket.open();
  last().onopen();
  last().onclose({ code, reason: "" });
}

test("a lost connection is tried again at once, then quickly for a while, then with growing waits up to 20 s", (t) => {
  const made = newSocket(t);
  lose(made);
  const quick = [250, ...Array(19).fill(500)];
  for (const wait of [...quick, 300, 600, 1200, 2400, 4800, 9600, 19_200, 20_000, 20_000]) {
    const before = made.websockets.length;
    made.tick(wait - 1);
    assert.equal(made.websockets.length, before, `tried before ${wait} ms`);
    made.tick(1);
    assert.equal(made.websockets.length, before + 1, `not tried after ${wait} ms`);
    made.last().onclose({ code: 1006, reason: "" });
  }
});

test("a cut of 3 s in which tries fail at once is healed within 0.5 s, by one try", (t) => {
  for (const random of [() => 0, () => 0.5, () => 1]) {
    const made = newSocket(t, { random });
    lose(made);
    for (let ms = 0; ms < 3000; ms += 10) {
      made.last().onclose?.({ code: 1006, reason: "" }); // refused, in no time
      made.tick(10);
    }
    made.last().onclose?.({ code: 1006, reason: "" });
    const during = made.websockets.length;
    assert.ok(during <= 14, `${during - 1} tries in 3 s`);
    for (let ms = 0; ms < 500 && made.websockets.length === during; ms += 10) made.tick(10);
    assert.equal(made.websockets.length, during + 1);
    made.last().onopen();
    made.tick(5000);
    assert.equal(made.websockets.length, during + 1);
    made.socket.close();
    mock.timers.reset();
  }
});

test("in a cut that swallows packets each try gives way to another one", (t) => {
  const made = newSocket(t);
  lose(made);
  made.tick(250);
  const times = [];
  for (let ms = 250; ms < 12_000; ms += 10) {
    const before = made.websockets.length;
    made.tick(10);
    if (made.websockets.length > before) times.push(ms + 10);
  }
  const gaps = times.map((at, n) => at - (times[n - 1] ?? 250));
  const worst = Math.max(...gaps.filter((_, n) => times[n] <= 3500));
  assert.ok(worst <= 1000, `${worst} ms between tries in the first seconds`);
  assert.ok(gaps.at(-1) >= 2000, "a slow network has time to answer in the end");
  assert.ok(times.length <= 14, `${times.length} tries in 12 s`);
});

test("a try may last three times as long as the last opening took", (t) => {
  const made = newSocket(t);
  made.socket.open();
  made.tick(900);
  made.last().onopen();
  made.last().onclose({ code: 1006, reason: "" });
  made.tick(250);
  made.tick(2699);
  assert.equal(made.websockets.length, 2);
  made.tick(1);
  assert.equal(made.websockets.length, 3);
});

test("the first try of all has ten seconds", (t) => {
  const { socket, websockets, tick } = newSocket(t);
  socket.open();
  tick(9999);
  assert.equal(websockets.length, 1);
  tick(1);
  assert.equal(websockets.length, 2);
});

test("a try that was given up is let go, and one that opens has no limit", (t) => {
  const { socket, last, tick } = newSocket(t);
  socket.open();
  const old = last();
  let closed = 0;
  old.close = () => (closed += 1);
  tick(10_000);
  assert.equal(closed, 1);
  assert.equal(old.onopen, null);
  tick(500);
  last().onopen();
  tick(20_000);
  assert.equal(socket.state, "open");
});

test("the waits are jittered", (t) => {
  const made = newSocket(t, { random: () => 0.5 });
  lose(made, 1012);
  made.tick(124);
  assert.equal(made.websockets.length, 1);
  made.tick(1);
  assert.equal(made.websockets.length, 2);
});

for (const code of [1011, 1013, 4008, 4500]) {
  test(`a server that says ${code} is not tried again quickly, but with growing waits`, (t) => {
    const { socket, websockets, last, tick } = newSocket(t);
    socket.open();
    for (const wait of [300, 600, 1200, 2400]) {
      const before = websockets.length;
      last().onopen();
      last().onclose({ code, reason: "" });
      tick(wait - 1);
      assert.equal(websockets.length, before, `tried before ${wait} ms`);
      tick(1);
      assert.equal(websockets.length, before + 1, `not tried after ${wait} ms`);
    }
  });
}

test("after 30 s of connection the next trouble starts small again", (t) => {
  const made = newSocket(t);
  made.socket.open();
  for (let n = 0; n < 25; n += 1) {
    made.last().onopen();
    made.last().onclose({ code: 1006 });
    made.tick(20_000);
  }
  made.last().onopen();
  made.tick(20_000);
  made.receive({ type: "pong", t: 0 });
  made.tick(10_000);
  made.last().onclose({ code: 1006 });
  const before = made.websockets.length;
  made.tick(250);
  assert.equal(made.websockets.length, before + 1);
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

test("a network that is back restarts a try that began in the dead one", (t) => {
  const { socket, websockets, tick } = newSocket(t);
  socket.open();
  socket.wake();
  assert.equal(websockets.length, 1, "one that has just begun goes on");
  tick(300);
  socket.wake();
  assert.equal(websockets.length, 2);
});

test("an answer of the server to something else ends the waiting", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  socket.reachable();
  assert.equal(websockets.length, 1);
  last().onclose({ code: 1006 });
  socket.reachable();
  assert.equal(websockets.length, 2);
  last().onopen();
  tick(1);
  socket.reachable();
  assert.equal(websockets.length, 2);
  assert.ok(!last().sent.some(({ type }) => type === "ping"));
});

test("neither the user nor the network cuts short a wait that the server asked for", (t) => {
  const { socket, websockets, last, tick } = newSocket(t);
  socket.open();
  last().onclose({ code: 4429, reason: "too_many_connections;retry_after_ms=5000" });
  socket.wake();
  socket.reachable();
  tick(4999);
  socket.wake();
  assert.equal(websockets.length, 1);
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

for (const code of [1000, 1009, 4400, 4403, 4406, 4408]) {
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

for (const code of [1001, 1006, 1011, 1012, 1013, 4008, 4410]) {
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

for (const [code, why] of [[4429, "rate_limited"], [1013, "store_unavailable"]]) {
  test(`close ${code} waits as long as its reason says, and up to a quarter more by chance`, (t) => {
    for (const [chance, wait] of [[0, 7000], [1, 8750]]) {
      const { socket, websockets, last, tick } = newSocket(t, { random: () => chance });
      socket.open();
      last().onclose({ code, reason: `${why};retry_after_ms=7000` });
      tick(wait - 1);
      assert.equal(websockets.length, 1);
      tick(1);
      assert.equal(websockets.length, 2);
      socket.close();
      mock.timers.reset();
    }
  });
}

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
