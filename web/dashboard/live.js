// @ts-check
// What the server tells of itself, about once a second, over one socket for the whole page.

import { connect } from '../client.js';
import { setClock } from './time.js';

/** @typedef {{ name: string, ready: number, running: number, dead: number, oldestAgeMs: number, pausedUntil: string | null }} Queue */
/** @typedef {{ name: string, kind: string, state: string, pausedUntil: string | null, inFlight: number, concurrency: number, rate: string | null, calls: number, failures: number }} Upstream */
/** @typedef {{ name: string, firing: boolean, value: number, threshold: number, since: string | null, message: string }} Alert */
/** @typedef {Record<string, number>} Totals */
/** @typedef {{ at: string, since: string, store: { kind: string, ok: boolean }, redis: { configured: boolean, ok: boolean }, totals: Totals, queues: Queue[], upstreams: Upstream[], alerts: Alert[] }} Overview */
/** @typedef {'overview' | 'runs' | 'boxes' | 'jobs' | 'leases'} TopicName */

/** Samples that are kept for charts: five minutes of them. */
const KEPT = 300;

class Live {
  /** @type {Map<string, Set<(data: any) => void>>} */
  #listeners = new Map();
  /** @type {Map<string, any>} */
  #latest = new Map();
  /** @type {import('../client.js').Connection | null} */
  #connection = null;
  /** @type {TopicName[]} */
  #topics = [];
  /** What was counted, look by look. @type {{ at: number, totals: Totals }[]} */
  history = [];
  /** @type {import('../client.js').Status} */
  status = { state: 'connecting', retryInMs: 0 };
  /** The topics that the server tells. @type {string[] | null} */
  granted = null;

  /** Connects, or connects anew after a login. */
  start() {
    this.stop();
    this.#connection = connect({
      onStatus: (status) => {
        this.status = status;
        this.#tell('status', status);
      },
    });
    this.#subscribe();
  }

  stop() {
    this.#connection?.close();
    this.#connection = null;
  }

  /** What the page that is shown wants to hear beside the overview. @param {TopicName[]} topics */
  want(topics) {
    if (topics.join() === this.#topics.join()) return;
    this.#topics = topics;
    this.#subscribe();
  }

  #subscribe() {
    const last = this.history.at(-1);
    this.#connection?.subscribe({ channel: 'dashboard', topics: this.#topics, ...(last ? { since: last.at } : {}) }, (message) => this.#hear(message));
  }

  /** @param {import('../client.js').Message} message */
  #hear(message) {
    if (message.type === 'sub_ack') {
      this.granted = message.topics;
      this.#tell('granted', message.topics);
    } else if (message.type === 'sub_nack') {
      this.#tell('refused', message.reason);
    } else if (message.topic === 'history') {
      this.#remember(message.data);
    } else {
      if (message.topic === 'overview') this.#look(message.data);
      this.#latest.set(message.topic, message.data);
      this.#tell(message.topic, message.data);
    }
  }

  /** @param {{ fields: string[], samples: number[][] }} past */
  #remember({ fields, samples }) {
    const last = this.history.at(-1)?.at ?? 0;
    const told = samples.map(([at = 0, ...values]) => ({
      at,
      totals: Object.fromEntries(fields.map((name, nth) => [name, values[nth] ?? 0])),
    }));
    this.history.push(...told.filter(({ at }) => at > last));
    this.#forget();
    this.#tell('history', this.history);
  }

  /** @param {Overview} overview */
  #look(overview) {
    setClock(overview.at);
    const at = Date.parse(overview.at);
    const last = this.history.at(-1);
    if (last && at - last.at < 700) return;
    this.history.push({ at, totals: overview.totals });
    this.#forget();
  }

  #forget() {
    if (this.history.length > KEPT) this.history.splice(0, this.history.length - KEPT);
  }

  /**
   * Hears of a topic, at once if something is known. Returns what ends it.
   * @param {string} topic
   * @param {(data: any) => void} hear
   */
  on(topic, hear) {
    const listeners = this.#listeners.get(topic) ?? new Set();
    this.#listeners.set(topic, listeners);
    listeners.add(hear);
    if (this.#latest.has(topic)) hear(this.#latest.get(topic));
    return () => listeners.delete(hear);
  }

  /** @param {string} topic @returns {any} */
  latest(topic) {
    return this.#latest.get(topic);
  }

  /** @param {string} topic @param {any} data */
  #tell(topic, data) {
    for (const hear of [...(this.#listeners.get(topic) ?? [])]) hear(data);
  }

  /**
   * How often something happened a second, of late.
   * @param {string} name
   * @param {number} [overMs]
   */
  rate(name, overMs = 10_000) {
    const last = this.history.at(-1);
    if (!last) return 0;
    const first = this.history.find((sample) => sample.at >= last.at - overMs) ?? last;
    const seconds = (last.at - first.at) / 1000;
    const grown = (last.totals[name] ?? 0) - (first.totals[name] ?? 0);
    // Counters begin anew when the server does.
    return seconds > 0 ? Math.max(0, grown) / seconds : 0;
  }
}

export const live = new Live();
