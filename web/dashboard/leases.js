// @ts-check
// Leases: who has what, until when, and who waits for it.

import { el, keyed, say } from './dom.js';
import { number } from './format.js';
import { live } from './live.js';
import { setTime, until } from './time.js';
import { card, cell, either, empty, head, table } from './parts.js';

/** @typedef {{ key: string, owner: string, fence: number, expiresAt: string, waiters: number }} Lease */

/** @type {import('./main.js').Page} */
export const leases = {
  path: '/leases',
  name: 'Leases',
  topics: ['leases'],
  show(main) {
    const { node: rows, body } = table('Keys that are held', ['Key', 'Owner', 'Fence', 'Ends', 'Waiting']);
    const none = empty('Nothing is held', 'A lease is taken with POST /v1/leases: one owner, an end, and a fence that only grows.');
    const holder = el('div', { class: 'holder' });
    main.append(head('Leases', 'A named right with an end. Whoever asks for one that is held is told by whom and until when, or waits; the fence lets what it protects refuse a holder that was paused past its end.'),
      card('', holder));
    const keep = keyed(body, (/** @type {Lease} */ lease) => lease.key, make);
    return live.on('leases', (/** @type {{ items: Lease[] }} */ { items }) => {
      keep(items);
      either(holder, items.length > 0, rows, none);
    });
  },
};

/** @param {Lease} lease */
function make(lease) {
  const [owner, fence, waiters] = [cell('Owner'), cell('Fence'), cell('Waiting')];
  const end = until(lease.expiresAt);
  const node = el('tr', {}, cell('Key', el('span', { class: 'key' }, lease.key)), owner, fence, cell('Ends', end), waiters);
  /** @param {Lease} seen */
  const update = (seen) => {
    say(owner, seen.owner);
    say(fence, number(seen.fence));
    setTime(end, seen.expiresAt);
    say(waiters, seen.waiters > 0 ? number(seen.waiters) : '–');
  };
  return { node, update };
}
