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

/** How long the server asks to wait, in the reason of a close. */
const waitIn = (reason) => Number(/retry_after_ms=(\d+)/.exec(reason)?.[1] ?? 0);

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
  let resuming = false, stopping = false, ended = false, failures = 0, retryAfter = 0;
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
      socket.close();
    }
  }

  function onFrame(frame) {
    if (frame.type === "error" && frame.error.retry_after_ms !== undefined) {
      retryAfter = frame.error.retry_after_ms; // what is asked again by its key is done once
      return socket.close();
    }
    if (frame.type === "error") {
      ended = true;
      settle.reject(new Error(`${frame.error.code}: ${frame.error.message}`));
      return socket.close();
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
    socket = new WebSocket(url.replace(/^http/, "ws") + "/v1/ws", protocols);
    resuming = false;
    // A session of that key that exists already is only joined again.
    socket.onopen = () => send({ type: "session.create", idempotency_key: key, event_id: key });
    socket.onmessage = ({ data }) => onFrame(JSON.parse(data));
    socket.onclose = ({ code, reason }) => {
      if (ended) return;
      if (!retryAfter && !comesBack(code)) return settle.reject(new Error(`closed: ${code} ${reason}`));
      const wait = Math.max(retryAfter, waitIn(reason));
      retryAfter = 0;
      setTimeout(open, wait + Math.random() * Math.min(20_000, 300 * 2 ** failures++));
    };
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
