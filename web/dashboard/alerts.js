// @ts-check
// Alerts: what an operator should look at, and what to do about it.

import { el, keyed, say } from './dom.js';
import { number } from './format.js';
import { live } from './live.js';
import { ago, setTime } from './time.js';
import { badge, either, empty, head, setBadge } from './parts.js';

/** @typedef {import('./live.js').Alert} Alert */

/** Where to look, by the name of the alert. @type {Record<string, [string, string]>} */
const WHERE = {
  queue_depth: ['/jobs', 'Queues'], breaker_open: ['/upstreams', 'Upstreams'], stuck_partitions: ['/runs', 'Runs'],
  lock_failure_rate: ['/leases', 'Leases'], cleanup_lag: ['/boxes', 'Boxes'], inventory_inconsistency: ['/boxes', 'Boxes'],
  reservation_failure_rate: ['/boxes', 'Boxes'],
};

/** Those that are shares of something. */
const SHARES = ['lock_failure_rate', 'reservation_failure_rate'];

/** @param {Alert} alert @param {number} value */
function measured(alert, value) {
  if (SHARES.includes(alert.name)) return `${(value * 100).toFixed(1)} %`;
  return alert.name === 'cleanup_lag' ? `${number(value)} s` : number(value);
}

/** @type {import('./main.js').Page} */
export const alerts = {
  path: '/alerts',
  name: 'Alerts',
  topics: [],
  show(main) {
    const list = el('div', { class: 'grid' });
    const none = empty('Alerts are being judged', 'They come with the next look, within a second.');
    const holder = el('div', { class: 'holder' });
    main.append(head('Alerts', 'Judged over five minutes and at least twenty samples. A refusal is not a failure: a box that is sold out fires nothing.'), holder);
    const keep = keyed(list, (/** @type {Alert} */ alert) => alert.name, make);
    return live.on('overview', (/** @type {import('./live.js').Overview} */ { alerts: seen }) => {
      keep([...seen].sort((a, b) => Number(b.firing) - Number(a.firing)));
      either(holder, seen.length > 0, list, none);
    });
  },
};

/** @param {Alert} alert */
function make(alert) {
  const state = badge(alert.firing ? 'firing' : 'done');
  const [message, value] = [el('p', {}), el('span')];
  const since = ago(alert.since ?? new Date().toISOString());
  const sinceWords = el('span', {}, 'since ', since);
  const [path, name] = WHERE[alert.name] ?? ['/', 'Overview'];
  const node = el('section', { class: 'card alert' },
    el('div', { class: 'box-top' }, el('h2', {}, alert.name.replaceAll('_', ' ')), state),
    message, el('p', { class: 'facts' }, value, sinceWords, el('a', { href: path }, `Look at ${name.toLowerCase()}`)));
  /** @param {Alert} seen */
  const update = (seen) => {
    setBadge(state, seen.firing ? 'firing' : 'done', seen.firing ? 'firing' : 'quiet');
    say(message, seen.message);
    say(value, `${measured(seen, seen.value)} now, fires above ${measured(seen, seen.threshold)}`);
    sinceWords.hidden = !seen.since;
    if (seen.since) setTime(since, seen.since);
  };
  return { node, update };
}
