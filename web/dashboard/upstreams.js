// @ts-check
// Upstreams: whatever slow thing is called, and whether it is called now.

import { el, keyed, mark, say } from './dom.js';
import { number, share } from './format.js';
import { live } from './live.js';
import { setTime, until } from './time.js';
import { badge, bar, either, empty, figure, head, setBadge } from './parts.js';

/** @typedef {import('./live.js').Upstream} Upstream */

/** @type {Record<string, string>} */
const WORDS = { closed: 'called', open: 'left alone', 'half-open': 'tried', paused: 'paused' };

/** A state, for people. @param {Upstream} upstream */
export function stateWords(upstream) {
  return WORDS[upstream.state] ?? upstream.state;
}

/** @type {Record<string, string>} */
const MEANING = {
  closed: 'It is called whenever it is needed.',
  open: 'It failed too often in a row. Calls are refused at once, and one is let through now and then to see.',
  'half-open': 'One call is let through to see whether it has recovered.',
  paused: 'It asked to be left alone (Retry-After). Work waits and goes on by itself; no attempt is spent.',
};

/** @type {Record<string, string>} */
const KINDS = { provider: 'enrich provider', plugin: 'products plugin', source: 'feed source' };

/** @type {import('./main.js').Page} */
export const upstreams = {
  path: '/upstreams',
  name: 'Upstreams',
  topics: [],
  show(main) {
    const list = el('div', { class: 'grid' });
    const none = empty('No upstream is configured', 'Add a provider, a plugin or a source to solely.toml; solely.sample.toml has every setting.');
    const holder = el('div', { class: 'holder' });
    main.append(head('Upstreams', 'Each provider, plugin and source has a budget: a timeout, so many calls at once, a rate that all servers share, a breaker, and a pause that ends by itself.'), holder);
    const keep = keyed(list, (/** @type {Upstream} */ one) => `${one.kind} ${one.name}`, make);
    return live.on('overview', (/** @type {import('./live.js').Overview} */ { upstreams: seen }) => {
      keep(seen);
      either(holder, seen.length > 0, list, none);
    });
  },
};

/** @param {Upstream} upstream */
function make(upstream) {
  const state = badge(upstream.state);
  const meaning = el('p', { class: 'small dim' });
  const pause = until(upstream.pausedUntil ?? new Date().toISOString());
  const paused = el('p', { class: 'small' }, 'Goes on ', pause);
  const busy = bar(`Calls under way to ${upstream.name}`);
  const busyWords = el('span', { class: 'small dim' });
  const [calls, failures, rate] = [figure('Calls'), figure('Failed'), figure('Rate')];
  const node = el('section', { class: 'card upstream' },
    el('div', { class: 'box-top' }, el('div', {}, el('h2', {}, upstream.name), el('p', { class: 'small dim' }, KINDS[upstream.kind] ?? upstream.kind)), state),
    meaning, paused, el('div', {}, busy.node, busyWords),
    el('dl', { class: 'figures' }, calls.node, failures.node, rate.node));
  /** @param {Upstream} seen */
  const update = (seen) => {
    setBadge(state, seen.state, stateWords(seen));
    say(meaning, MEANING[seen.state] ?? '');
    paused.hidden = !seen.pausedUntil;
    if (seen.pausedUntil) setTime(pause, seen.pausedUntil);
    busy.set(seen.inFlight, seen.concurrency, seen.inFlight >= seen.concurrency ? 'warn' : '');
    say(busyWords, `${seen.inFlight} of ${seen.concurrency} calls at once`);
    say(calls.value, number(seen.calls));
    say(failures.value, `${number(seen.failures)}${seen.failures ? ` (${share(seen.failures, seen.calls)})` : ''}`);
    say(rate.value, seen.rate ?? 'any');
    mark(node, 'data-upstream', seen.name);
  };
  return { node, update };
}
