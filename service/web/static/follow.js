// Follows the events of a session: any server can continue where another stopped.
import { tellConnection } from "./live.js";

const ENDED = ["completed", "failed", "cancelled"];
const GATHER_MS = 300;
const AGAIN_MS = 1500;

/**
 * Calls `look(isMove)` soon after something happened. It returns the address of the events to continue with,
 * true to continue from here, or null if nothing can follow.
 */
export function follow(address, look) {
  if (!address) return;
  let timer = null;
  let isMove = false;
  let last = null;
  const source = new EventSource(address);

  source.onopen = () => tellConnection(null);
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    last = event.seq;
    isMove ||= event.kind === "state";
    if (event.kind === "state" && ENDED.includes(event.content.state)) source.close();
    timer ??= setTimeout(gathered, GATHER_MS);
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(async () => again(await look(true)), AGAIN_MS);
    } else {
      setTimeout(() => source.readyState === EventSource.OPEN || tellConnection("Connection lost, retrying"), 1000);
    }
  };

  async function gathered() {
    const move = isMove;
    [timer, isMove] = [null, false];
    const next = await look(move);
    if (source.readyState === EventSource.CLOSED && next) again(next);
  }

  function again(next) {
    if (!next) return tellConnection(null);
    const fresh = new URL(next === true ? address : next, location.href);
    if (next === true && last) fresh.searchParams.set("after", last);
    follow(fresh.href, look);
  }
}
