// Ask a running Parley one question from JavaScript; Ctrl-C stops the answer.
//
//   node --experimental-websocket examples/javascript_client.js URL TOKEN "Tell me a long story."
//
// Node 22 and later need no flag. In a browser, import `ask`: a page that Parley serves leaves the
// token out, because its cookie travels by itself. A lost connection loses nothing: the client comes
// back and goes on where it was. docs/protocol.md explains every frame and every rule.

/** A token as a websocket subprotocol: base64url without padding, because headers cannot be set. */
function bearer(token) {
  const base64 = btoa(String.fromCharCode(...new TextEncoder().encode(token)));
  return "bearer." + base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** Whether a connection that was closed with this code should be opened again. */
const comesBack = (code) =>
  code === 4429 || (![1000, 1002, 1007, 1009].includes(code) && !(code >= 4400 && code < 4500));

/** Whether nobody refused: the network, or the worker, is gone. */
const isLoss = (code) => [1001, 1006, 1012].includes(code);

/** How long the server asks to wait, in the reason of a close. */
const waitIn = (reason) => Number(/retry_after_ms=(\d+)/.exec(reason)?.[1] ?? 0);

/**
 * How long to wait, and for how long to try: quick tries first, because a network that is back says
 * nothing; then a growing back-off, as for every refusal of the server.
 */
function newRetries() {
  let quick = 20, failures = 0, lostAt = Date.now(), beganAt = lostAt, openedAt = 0, openingMs = 10_000;
  return {
    began: () => {
      beganAt = Date.now();
      return Math.min(10_000, Math.max(500, 3 * openingMs, (beganAt - lostAt) / 4));
    },
    opened: () => {
      openedAt = Date.now();
      openingMs = openedAt - beganAt;
    },
    waitMs: (isLoss) => {
      const now = Date.now(), wasOpen = openedAt > 0;
      if (wasOpen) lostAt = now;
      if (wasOpen && now - openedAt > 30_000) [quick, failures] = [20, 0];
      openedAt = 0;
      if (!isLoss || quick === 0) return Math.random() * Math.min(20_000, 300 * 2 ** failures++);
      quick -= 1;
      return wasOpen ? 250 * Math.random() : Math.max(0, beganAt + 250 * (1 + Math.random()) - now);
    },
  };
}

/**
 * Ask in a new session. `onText` gets the whole text so far, whenever it has changed.
 * @returns {{ done: Promise<object>, stop: () => void }} the response object of `response.done`
 */
export function ask(url, question, { token, onText }) {
  const protocols = token ? ["chat.v1", bearer(token)] : ["chat.v1"];
  // The key names the question, so that sending it twice asks it once.
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16)).join("");
  let socket, sessionId, responseId;
  let text = "", last = 0, fence = 1;
  let resuming = false, stopping = false, ended = false, retryAfter = 0;
  let heartbeat, silence;
  const retries = newRetries();
  let settle;
  const done = new Promise((resolve, reject) => (settle = { resolve, reject }));
  const send = (frame) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(frame));

  function stop() {
    stopping = true;
    // With the key the stop also finds an answer that has not begun.
    if (sessionId !== undefined) send({ type: "stop", session_id: sessionId, idempotency_key: key });
  }

  function resume(after) {
    if (resuming) return; // once; what comes until the answer is ignored
    resuming = true;
    send({ type: "response.resume", response_id: responseId, fence, after_sequence_number: after });
  }

  /** An entry of the answer's log, or a snapshot, by the ordering rules. */
  function take(frame) {
    const number = frame.sequence_number;
    if (frame.type === "response.output_text.snapshot") {
      text = frame.part === 1 ? frame.text : text + frame.text;
    } else if (frame.type === "response.done") {
      const isShort = frame.text === undefined && text.length < frame.response.text_length;
      if (isShort) return resume(last); // the end overtook what was missed: both come again, in order
      text = (frame.text ?? text).slice(0, frame.response.text_length);
    } else if (number <= last) {
      return;
    } else if ((frame.first_sequence_number ?? number) > last + 1) {
      return resume(last);
    } else if (frame.type === "response.output_text.delta") {
      if (frame.text_offset !== text.length) return resume(0);
      text += frame.delta;
    }
    [last, fence] = [number, frame.fence];
    resuming = frame.part < frame.parts;
    onText(text);
    // An end that is not stored yet is followed by another, unless its session is lost with it.
    const isLost = frame.response?.status_details?.reason === "store_lost";
    if (frame.type === "response.done" && (frame.durable || isLost)) {
      ended = true;
      settle.resolve(frame.response);
      closed();
    }
  }

  /** A network that is gone closes nothing: a connection is lost when no pong comes. */
  function beat({ interval_ms, timeout_ms }) {
    heartbeat = setInterval(() => {
      send({ type: "ping" });
      silence ??= setTimeout(() => closed(1006, "no pong"), timeout_ms);
    }, interval_ms);
  }

  function onFrame(frame) {
    if (frame.type === "connection.ready") return beat(frame.heartbeat);
    if (frame.type === "pong") silence = clearTimeout(silence);
    if (frame.type === "error" && frame.error.retry_after_ms !== undefined) {
      retryAfter = frame.error.retry_after_ms; // what is asked again by its key is done once
      return closed(1005, "");
    }
    if (frame.type === "error") {
      ended = true;
      settle.reject(new Error(`${frame.error.code}: ${frame.error.message}`));
      return closed();
    }
    if (frame.type === "session.created" && frame.event_id === key) {
      sessionId = frame.session.id;
      if (responseId !== undefined) resume(last);
      else send({ type: "response.create", session_id: sessionId, idempotency_key: key, input: question });
      if (stopping) stop();
    }
    if (frame.type === "response.created" && frame.idempotency_key === key) responseId = frame.response.id;
    const isOwn = (frame.response_id ?? frame.response?.id) === responseId;
    if (isOwn && frame.sequence_number !== undefined) take(frame);
  }

  function open() {
    silence = setTimeout(() => closed(1006, "no answer"), retries.began());
    socket = new WebSocket(url.replace(/^http/, "ws") + "/v1/ws", protocols);
    resuming = false;
    socket.onopen = () => {
      silence = clearTimeout(silence);
      retries.opened();
      // A session of that key that exists already is only joined again.
      send({ type: "session.create", idempotency_key: key, event_id: key });
    };
    socket.onmessage = ({ data }) => onFrame(JSON.parse(data));
    socket.onclose = ({ code, reason }) => closed(code, reason);
  }

  function closed(code, reason) {
    silence = clearTimeout(silence);
    clearInterval(heartbeat);
    socket.onopen = socket.onmessage = socket.onclose = null;
    socket.close(); // a half-open one never says that it is closed
    if (ended) return;
    if (!retryAfter && !comesBack(code)) return settle.reject(new Error(`closed: ${code} ${reason}`));
    const asked = Math.max(retryAfter, waitIn(reason)) * (1 + Math.random() / 4);
    retryAfter = 0;
    setTimeout(open, Math.max(asked, retries.waitMs(isLoss(code))));
  }

  open();
  return { done, stop };
}

if (globalThis.process?.argv[1]?.endsWith("javascript_client.js")) {
  const fail = (message) => {
    console.error(message);
    process.exit(1);
  };
  const [url, token, question = "Tell me a long story."] = process.argv.slice(2);
  if (!token) fail("usage: node javascript_client.js URL TOKEN [QUESTION]");
  if (!globalThis.WebSocket) fail("this node has a WebSocket only with --experimental-websocket");
  let printed = 0;
  const onText = (text) => {
    process.stdout.write(text.slice(printed));
    printed = Math.max(printed, text.length);
  };
  const answer = ask(url, question, { token, onText });
  process.on("SIGINT", answer.stop);
  const { status, status_details, usage } = await answer.done.catch((error) => fail(error.message));
  console.log(`\n[${status}: ${status_details.reason}, ${usage.output_tokens} tokens]`);
}
