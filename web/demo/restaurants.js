// @ts-check
// A search whose results are complete at once, and whose links arrive as they are found.

import { connect, linkOf } from '../client.js';
import { el, fill, find, keyed, mark, say } from '../dashboard/dom.js';
import { badge, setBadge } from '../dashboard/parts.js';

/** @typedef {import('../client.js').Result} Result */

const NAMES = ['Zohara', 'Levontin', 'Tamarin', 'Karmit', 'Bograshov', 'Nehama', 'Sabich & Sons', 'Yafo Port', 'Nowhere'];

const status = find(document, '#status');
const solely = connect({
  onStatus: ({ state }) => {
    mark(status, 'data-state', state);
    say(find(status, 'span'), state === 'open' ? 'Live' : 'Connecting');
  },
});
const list = find(document, '#results');
const summary = find(document, '#summary');
let end = () => {};

/** What a search engine would have found: the same for everyone who searches for the same. @param {string} what @param {string} where @returns {Result[]} */
function found(what, where) {
  const city = where.toLowerCase().replaceAll(' ', '-');
  return NAMES.map((own, nth) => {
    const name = `${own} ${what}`;
    const slug = name.toLowerCase().replace(/[^a-z]+/g, '-');
    return {
      placeId: `${own === 'Nowhere' ? 'nowhere' : 'demo'}-${city}-${slug}`, name, address: `${12 + nth * 7} ${where} Road`,
      rating: 4.9 - nth * 0.1, providers: { tripadvisor: { status: 'FOUND', url: null } },
    };
  });
}

/** @param {Result} result */
function row(result) {
  const state = badge('PENDING');
  const link = el('a', { class: 'button primary', rel: 'noopener noreferrer', target: '_blank' }, 'Order at Wolt');
  const node = el('li', { class: 'card place', 'data-place': result.placeId },
    el('div', {}, el('strong', {}, String(result.name)), el('p', { class: 'small dim' }, `★ ${Number(result.rating).toFixed(1)} · ${String(result.address)}`)),
    el('div', { class: 'actions' }, state, link));
  /** @param {Result} seen */
  const update = (seen) => {
    const wolt = linkOf(seen);
    const word = wolt?.status ?? 'PENDING';
    setBadge(state, word, { PENDING: 'Looking at Wolt', FOUND: 'At Wolt', NOT_FOUND: 'Not at Wolt' }[word]);
    link.hidden = !wolt?.url;
    if (wolt?.url && /^https?:\/\//.test(wolt.url)) mark(link, 'href', wolt.url);
    mark(link, 'aria-label', `Order at Wolt: ${String(seen.name)}`);
  };
  return { node, update };
}

/** @param {Result[]} results */
function show(results) {
  keep(results);
  const pending = results.filter((result) => linkOf(result)?.status === 'PENDING').length;
  say(summary, pending > 0 ? `${results.length} places, ${pending} still being looked up.` : `${results.length} places, all links known.`);
}
const keep = keyed(list, (/** @type {Result} */ result) => result.placeId, row);

/** @param {string} what @param {string} where */
async function search(what, where) {
  end();
  say(summary, 'Searching.');
  const body = JSON.stringify({ cityText: where, results: found(what, where) });
  try {
    const answer = await fetch('/v1/enrich', { method: 'POST', body, headers: { 'Content-Type': 'application/json' } });
    const said = await answer.json();
    if (!answer.ok) throw new Error(said.message);
    show(said.results);
    end = solely.follow(said.requestId, said.results, show);
  } catch (error) {
    fill(list);
    say(summary, `The search could not be made: ${error instanceof Error ? error.message : error}`);
  }
}

const form = find(document, '#search');
const what = /** @type {HTMLInputElement} */ (find(document, '#what'));
const where = /** @type {HTMLSelectElement} */ (find(document, '#where'));
form.addEventListener('submit', (event) => {
  event.preventDefault();
  void search(what.value.trim(), where.value);
});
void search(what.value, where.value);
