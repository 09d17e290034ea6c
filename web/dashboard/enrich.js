// @ts-check
// Places and their links: look one up, see what is known and why, and watch lookups go by.

import { connect, linkOf } from '../client.js';
import { get, may, post, remove } from './api.js';
import { el, fill, keyed, say } from './dom.js';
import { count } from './format.js';
import { live } from './live.js';
import { ago, setTime, until } from './time.js';
import { action, badge, card, cell, either, empty, explainLink, head, problem, setBadge, table } from './parts.js';
import { timeline } from './timeline.js';

/** @typedef {import('./jobs.js').Job} Job */

/** @type {import('./main.js').Page} */
export const enrich = {
  path: '/enrich',
  name: 'Enrich',
  topics: ['jobs'],
  show(main, query) {
    const place = el('div');
    const recent = recentCard();
    const ask = askCard((id) => open(id));
    /** @type {(() => void) | null} */
    let end = null;
    /** @param {string} id */
    const open = (id) => {
      end?.();
      history.replaceState(null, '', `/enrich?place=${encodeURIComponent(id)}`);
      const shown = placeCard(id);
      end = shown.end;
      fill(place, shown.node);
    };
    const key = el('input', { id: 'place', type: 'text', placeholder: 'placeId', autocomplete: 'off', spellcheck: 'false', required: true, value: query.get('place') });
    const form = el('form', {
      class: 'form', onsubmit: (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        open(key.value.trim());
      },
    }, el('div', { class: 'field' }, el('label', { for: 'place' }, 'Look a place up'), key), el('button', { class: 'button' }, 'Look'));
    main.append(head('Enrich', 'Provider links for places: cache first, one lookup per place however many ask, and everyone who waits hears it.'),
      el('div', { class: 'split' }, el('div', { class: 'stack' }, card('What is known', form), place, recent.node), ask.node));
    const wanted = query.get('place');
    if (wanted) open(wanted);
    const ends = [live.on('jobs', () => recent.look()), live.on('overview', () => recent.look())];
    return () => {
      ends.forEach((stop) => stop());
      end?.();
      ask.end();
    };
  },
};

/** The providers that are enabled. @returns {string[]} */
function providers() {
  /** @type {import('./live.js').Overview | undefined} */
  const seen = live.latest('overview');
  return seen?.upstreams.filter((one) => one.kind === 'provider').map((one) => one.name) ?? [];
}

/** @param {string} id */
function placeCard(id) {
  const entries = el('div', { class: 'stack' });
  const told = timeline(`place:${id}`, () => void look());
  const node = card('', el('h2', { class: 'key' }, id), el('div', { class: 'stack' }, entries, told.node));
  let shown = '';
  async function look() {
    const found = await Promise.all(providers().map(async (provider) => {
      const path = `/v1/enrich/${encodeURIComponent(provider)}/places/${encodeURIComponent(id)}`;
      try {
        return { provider, path, entry: await get(path) };
      } catch {
        return { provider, path, entry: null };
      }
    }));
    const state = JSON.stringify(found);
    if (state === shown) return;
    shown = state;
    fill(entries, found.map(({ provider, path, entry }) => entryOf(provider, path, entry)));
  }
  return { node, end: told.end };
}

/** @param {string} provider @param {string} path @param {any} entry */
function entryOf(provider, path, entry) {
  if (!entry) return el('p', { class: 'dim' }, `Nothing is known at ${provider}. The next request has it looked up.`);
  const forget = entry.status !== 'PENDING' && action('Forget', async () => {
    await remove(path);
    return 'It is forgotten; the next request looks it up again.';
  }, { kind: 'danger', confirm: `Forget what is known at ${provider}? The next request looks it up again.`, disabled: may('enrich:write') ? false : 'This needs the scope enrich:write' });
  return el('div', { class: 'box-top' },
    el('dl', { class: 'pairs' },
      el('dt', {}, provider), el('dd', {}, badge(entry.status)),
      entry.url && [el('dt', {}, 'Link'), el('dd', {}, linkTo(entry.url))],
      entry.updatedAt && [el('dt', {}, 'Found out'), el('dd', {}, ago(entry.updatedAt))],
      entry.expiresAt && [el('dt', {}, 'Ends'), el('dd', {}, until(entry.expiresAt))],
      entry.job && [el('dt', {}, 'Lookup'), el('dd', {}, explainLink(`job:${entry.job}`, 'under way'))]),
    forget);
}

/** A link that goes where it says, and nowhere else. @param {string} url */
function linkTo(url) {
  return /^https?:\/\//.test(url) ? el('a', { href: url, rel: 'noopener noreferrer', target: '_blank' }, url) : el('span', { class: 'key' }, url);
}

/** Asks for a place as a client would, and follows it. @param {(id: string) => void} open */
function askCard(open) {
  const name = el('input', { id: 'ask-name', type: 'text', required: true, placeholder: 'Pizza House', autocomplete: 'off' });
  const city = el('input', { id: 'ask-city', type: 'text', placeholder: 'Tel Aviv', autocomplete: 'off' });
  const result = el('div', { 'aria-live': 'polite' });
  /** @type {import('../client.js').Connection | null} */
  let connection = null;
  const form = el('form', {
    class: 'stack', onsubmit: async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const place = { placeId: `asked-${name.value.trim().toLowerCase().replace(/\s+/g, '-')}`, name: name.value.trim() };
      try {
        const answer = await post('/v1/enrich', { results: [place], ...(city.value.trim() ? { cityText: city.value.trim() } : {}) });
        connection ??= connect();
        show(answer.results);
        if (answer.pending > 0) connection.follow(answer.requestId, answer.results, show);
        open(place.placeId);
      } catch (error) {
        fill(result, problem(error));
      }
    },
  },
  el('div', { class: 'field' }, el('label', { for: 'ask-name' }, 'Name'), name),
  el('div', { class: 'field' }, el('label', { for: 'ask-city' }, 'City'), city),
  el('button', { class: 'button primary' }, 'Ask'));
  /** @param {import('../client.js').Result[]} results */
  function show(results) {
    fill(result, results.map((one) => {
      const link = linkOf(one, providers()[0] ?? 'wolt');
      return el('p', { class: 'lookup-result' }, el('strong', {}, String(one.name)), link ? badge(link.status) : badge('ready', 'no provider is enabled'), link?.url && linkTo(link.url));
    }));
  }
  return {
    node: card('Ask for a place', el('p', { class: 'small dim' }, 'As a client does: answered at once, and the badge turns when the lookup has ended.'), form, result),
    end: () => connection?.close(),
  };
}

function recentCard() {
  const { node: rows, body } = table('Lookups of late', ['Place', 'State', 'Attempts', 'Changed']);
  const none = empty('No lookup yet', 'A place that is asked for and not known is looked up once, and is shown here.');
  const nobody = empty('No provider is enabled', 'A section [enrich.providers.wolt] of solely.toml with enabled = true and a finder\'s url has places looked up.');
  const holder = el('div', { class: 'holder' });
  const title = el('h2', {}, 'Lookups of late');
  let asked = 0;
  const keep = keyed(body, (/** @type {Job} */ job) => job.id, (job) => {
    const state = badge(job.state);
    const attempts = cell('Attempts');
    const changed = ago(job.updatedAt);
    const node = el('tr', {}, cell('Place', el('span', {}, el('a', { href: `/enrich?place=${encodeURIComponent(job.key)}` }, nameOf(job)), el('br'), el('span', { class: 'small dim key' }, job.key))), cell('State', state), attempts, cell('Changed', changed));
    /** @param {Job} seen */
    const update = (seen) => {
      setBadge(state, seen.state);
      say(attempts, String(seen.attempts));
      setTime(changed, seen.updatedAt);
    };
    return { node, update };
  });
  return {
    node: el('section', { class: 'card stack' }, title, holder),
    async look() {
      const names = providers();
      if (names.length === 0 && live.latest('overview')) either(holder, false, rows, nobody);
      if (Date.now() - asked < 1500 || document.hidden || names.length === 0) return;
      asked = Date.now();
      const pages = await Promise.all(names.map((name) => get(`/v1/jobs?${new URLSearchParams({ queue: `enrich:${name}`, limit: '20' })}`).catch(() => ({ items: [] }))));
      /** @type {Job[]} */
      const items = pages.flatMap((page) => page.items);
      keep(items);
      either(holder, items.length > 0, rows, none);
      const running = items.filter((job) => job.state === 'running').length;
      say(title, running > 0 ? `Lookups of late, ${count(running, 'running', 'running')}` : 'Lookups of late');
    },
  };
}

/** @param {Job} job */
function nameOf(job) {
  const name = /** @type {Record<string, unknown>} */ (job.attributes).name;
  return typeof name === 'string' ? name : job.key;
}
