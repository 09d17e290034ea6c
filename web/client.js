// @ts-check
/**
 * solely in a browser: hear of results as they are found.
 *
 *     import { connect, linkOf } from "/client.js";
 *
 *     const solely = connect();
 *     const answer = await (await fetch("/v1/enrich", { method: "POST", body })).json();
 *     solely.follow(answer.requestId, answer.results, (results) => show(results));
 *     linkOf(results[0]);                      // {status: "FOUND", url: "https://wolt.com/…"}
 *
 * A connection that breaks is made again, sooner at first and then less often, and whatever was
 * subscribed to is subscribed to again: the server then tells what was missed. Nothing here is kept
 * that the server does not have.
 */

/**
 * What is known of a place at a provider.
 * @typedef {{ status: "PENDING" | "FOUND" | "NOT_FOUND", url: string | null, updatedAt?: string, meta?: object }} Link
 */

/**
 * A result of a search: whatever it came with, and its links.
 * @typedef {{ placeId: string, name?: string, providers?: Record<string, Link>, wolt?: Link, [field: string]: unknown }} Result
 */

/**
 * What can be subscribed to.
 * @typedef {{ channel: "search", requestId: string }
 *   | { channel: "inventory", inventoryId: string }
 *   | { channel: "reservations", userId: string }
 *   | { channel: "dashboard", topics: string[], since?: number }} Topic
 */

/**
 * What a server says.
 * @typedef {{ type: string, [field: string]: any }} Message
 */

/**
 * How a connection is: `open`, or `waiting` to be made again.
 * @typedef {{ state: "connecting" | "open" | "waiting" | "closed", retryInMs: number }} Status
 */

/**
 * @typedef {object} Options
 * @property {string} [url] The socket; that of the page's own server if there is none.
 * @property {() => Promise<string>} [ticket] Gets a ticket (`POST /v1/ws/tickets`) for each connection, where the
 *   browser is neither logged in nor let in without access control.
 * @property {(status: Status) => void} [onStatus] Hears how the connection is.
 */

const FIRST_WAIT_MS = 250;
const LONGEST_WAIT_MS = 10_000;
const PING_EVERY_MS = 20_000;
/** So long without a word, the connection is thought to be gone. */
const SILENCE_MS = 45_000;

/**
 * Joins a patch into what is there, deeply: fields that the patch does not name stay, so other providers
 * are kept. Neither is changed; the joined one is returned.
 * @template {Record<string, any>} T
 * @param {T} target
 * @param {Record<string, any>} patch
 * @returns {T}
 */
export function merge(target, patch) {
  /** @type {Record<string, any>} */
  const merged = { ...target };
  for (const [key, value] of Object.entries(patch)) {
    if (key === "__proto__") continue;
    const before = merged[key];
    merged[key] = isObject(value) && isObject(before) ? merge(before, value) : value;
  }
  return /** @type {T} */ (merged);
}

/** @param {unknown} value @returns {value is Record<string, any>} */
function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * What is known of a result at a provider: `providers.wolt`, or else the older `wolt`.
 * @param {Result} result
 * @param {string} [provider]
 * @returns {Link | null}
 */
export function linkOf(result, provider = "wolt") {
  const link = result.providers?.[provider] ?? result[provider];
  return isObject(link) ? /** @type {Link} */ (/** @type {unknown} */ (link)) : null;
}

/**
 * A connection to a server.
 * @param {Options} [options]
 */
export function connect(options = {}) {
  return new Connection(options);
}

/** What messages of a topic are known by. @param {any} said @returns {string} */
function keyOf(said) {
  switch (said.channel ?? said.type) {
    case "search": case "RESULT_PATCH": return `search ${said.requestId}`;
    case "inventory": case "INVENTORY_PATCH": return `inventory ${said.inventoryId}`;
    case "reservations": return `reservations ${said.userId}`;
    case "dashboard": case "DASHBOARD": return "dashboard";
    default: return String(said.type).startsWith("reservation.") ? `reservations ${said.data?.userId}` : "";
  }
}

export class Connection {
  /** @type {Map<string, { topic: Topic, hearers: Set<{ hear: (message: Message) => void }> }>} */
  #topics = new Map();
  /** @type {WebSocket | null} */
  #socket = null;
  #waitMs = FIRST_WAIT_MS;
  #heardAt = 0;
  #closed = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {ReturnType<typeof setInterval>} */
  #pulse;
  /** @type {Options} */
  #options;
  /** @type {Status} */
  status = { state: "connecting", retryInMs: 0 };

  /** @param {Options} options */
  constructor(options) {
    this.#options = options;
    this.#pulse = setInterval(() => this.#beat(), PING_EVERY_MS);
    globalThis.addEventListener?.("online", this.#now);
    void this.#open();
  }

  /**
   * Hears what is said about a topic, from now on and after every interruption. Returns what ends it.
   * Any number may hear of one topic; of the dashboard only the last one does.
   * @param {Topic} topic
   * @param {(message: Message) => void} hear
   * @returns {() => void}
   */
  subscribe(topic, hear) {
    const key = keyOf(topic);
    const hearer = { hear };
    const others = topic.channel === "dashboard" ? undefined : this.#topics.get(key)?.hearers;
    const hearers = (others ?? new Set()).add(hearer);
    this.#topics.set(key, { topic, hearers });
    // Who joins others in a search is told what they have been told: the server tells it to a new subscription.
    // What others hear of otherwise is not told again, and nothing of it is to be missed.
    if (others && topic.channel === "search") this.#say({ v: 1, type: "unsubscribe", ...topic });
    if (!others || topic.channel === "search") this.#say({ v: 1, type: "subscribe", ...topic });
    return () => {
      if (!hearers.delete(hearer) || hearers.size > 0 || this.#topics.get(key)?.hearers !== hearers) return;
      this.#topics.delete(key);
      this.#say({ v: 1, type: "unsubscribe", ...topic });
    };
  }

  /**
   * Follows a search: keeps its results up to date as patches arrive, and says so each time. Returns what
   * ends it.
   * @param {string} requestId
   * @param {Result[]} results
   * @param {(results: Result[], placeId: string) => void} changed
   * @returns {() => void}
   */
  follow(requestId, results, changed) {
    let known = results;
    return this.subscribe({ channel: "search", requestId }, (message) => {
      if (message.type !== "RESULT_PATCH") return;
      known = known.map((result) => (result.placeId === message.placeId ? merge(result, message.patch) : result));
      changed(known, message.placeId);
    });
  }

  /** Ends the connection for good. */
  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    clearInterval(this.#pulse);
    globalThis.removeEventListener?.("online", this.#now);
    this.#socket?.close();
    this.#tell("closed", 0);
  }

  /** Connects again without waiting: the network is back. */
  #now = () => {
    if (this.status.state !== "waiting") return;
    clearTimeout(this.#timer);
    void this.#open();
  };

  async #open() {
    if (this.#closed) return;
    this.#tell("connecting", 0);
    let address;
    try {
      address = await this.#address();
    } catch {
      this.#again();
      return;
    }
    if (this.#closed) return;
    const socket = new WebSocket(address);
    this.#socket = socket;
    this.#heardAt = Date.now();
    socket.onopen = () => {
      this.#tell("open", 0);
      for (const { topic } of this.#topics.values()) this.#say({ v: 1, type: "subscribe", ...topic });
    };
    socket.onmessage = (event) => this.#hear(String(event.data));
    socket.onclose = () => {
      if (this.#socket === socket) this.#again();
    };
  }

  async #address() {
    const page = globalThis.location;
    const own = page ? `${page.protocol === "https:" ? "wss:" : "ws:"}//${page.host}/v1/ws` : "";
    const url = this.#options.url ?? own;
    return this.#options.ticket ? `${url}?ticket=${encodeURIComponent(await this.#options.ticket())}` : url;
  }

  #again() {
    this.#socket = null;
    if (this.#closed) return;
    // Those that were cut off together do not come back together.
    const wait = Math.round(this.#waitMs * (0.5 + Math.random() / 2));
    this.#waitMs = Math.min(this.#waitMs * 2, LONGEST_WAIT_MS);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.#open(), wait);
    this.#tell("waiting", wait);
  }

  /** @param {string} text */
  #hear(text) {
    this.#heardAt = Date.now();
    // A server that takes the connection and drops it at once is not come back to quickly.
    this.#waitMs = FIRST_WAIT_MS;
    /** @type {Message} */
    const message = JSON.parse(text);
    for (const { hear } of [...this.#topics.get(keyOf(message))?.hearers ?? []]) hear(message);
  }

  #beat() {
    if (this.#socket?.readyState !== WebSocket.OPEN) return;
    if (Date.now() - this.#heardAt > SILENCE_MS) {
      const silent = this.#socket;
      this.#again();
      silent.close();
    } else {
      this.#say({ type: "ping" });
    }
  }

  /** @param {object} message */
  #say(message) {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify(message));
  }

  /** @param {Status["state"]} state @param {number} retryInMs */
  #tell(state, retryInMs) {
    this.status = { state, retryInMs };
    this.#options.onStatus?.(this.status);
  }
}
