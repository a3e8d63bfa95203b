// Ask a running Parley one question from JavaScript; Ctrl-C stops the answer.
//
//   node --experimental-websocket examples/javascript_client.js URL TOKEN "Tell me a long story."
//
// Node 22 and later need no flag. In a browser, import `ask`: a page that Parley serves leaves the
// token out, because its cookie travels by itself. docs/protocol.md explains every frame.

/** A token as a websocket subprotocol: base64url without padding, because headers cannot be set. */
function bearer(token) {
  const base64 = btoa(String.fromCharCode(...new TextEncoder().encode(token)));
  return "bearer." + base64.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/**
 * Ask in a new session. `onText` gets each new piece of text.
 * @returns {{ done: Promise<object>, stop: () => void }} the response object of `response.done`
 */
export function ask(url, question, { token, onText }) {
  const protocols = token ? ["chat.v1", bearer(token)] : ["chat.v1"];
  const socket = new WebSocket(url.replace(/^http/, "ws") + "/v1/ws", protocols);
  const send = (frame) => socket.send(JSON.stringify(frame));
  const key = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16)).join("");
  let sessionId;

  const done = new Promise((resolve, reject) => {
    socket.onopen = () => send({ type: "session.create", idempotency_key: key, event_id: key });
    socket.onclose = ({ code, reason }) => reject(new Error(`closed: ${code} ${reason}`));
    socket.onmessage = ({ data }) => {
      const frame = JSON.parse(data);
      if (frame.type === "session.created" && frame.event_id === key) {
        sessionId = frame.session.id;
        send({ type: "response.create", session_id: sessionId, idempotency_key: key, input: question });
      } else if (frame.type === "response.output_text.delta") {
        onText(frame.delta);
      } else if (frame.type === "response.done") {
        resolve(frame.response);
        socket.close();
      } else if (frame.type === "error") {
        reject(new Error(`${frame.error.code}: ${frame.error.message}`));
        socket.close();
      }
    };
  });
  const stop = () => {
    if (sessionId === undefined) return socket.close(); // nothing was asked yet
    // With the key the stop also finds an answer that has not begun.
    send({ type: "stop", session_id: sessionId, idempotency_key: key });
  };
  return { done, stop };
}

if (globalThis.process?.argv[1]?.endsWith("javascript_client.js")) {
  const [url, token, question = "Tell me a long story."] = process.argv.slice(2);
  const answer = ask(url, question, { token, onText: (text) => process.stdout.write(text) });
  process.on("SIGINT", answer.stop);
  const { status, status_details, usage } = await answer.done;
  console.log(`\n[${status}: ${status_details.reason}, ${usage.output_tokens} tokens]`);
}
