// @ts-check
// Product searches: where an answer comes from, and what happens behind it.

import { get, may, post } from './api.js';
import { el, fill, keyed, say } from './dom.js';
import { number, share } from './format.js';
import { live } from './live.js';
import { ago, setTime } from './time.js';
import { badge, card, cell, either, empty, explainLink, figure, head, problem, setBadge, table } from './parts.js';
import { stateWords } from './upstreams.js';

/** @typedef {import('./jobs.js').Job} Job */
/** @typedef {import('./live.js').Upstream} Upstream */

/** What a state of the cache means. @type {Record<string, string>} */
const MEANING = {
  fresh: 'From the cache, young enough.',
  stale: 'From the cache at once, although it is old; one refresh runs behind it.',
  cacheOnly: 'From the cache: the plugin is not to be called.',
  empty: 'Nothing is cached, and the plugin is not to be called.',
  refreshed: 'The plugin was called because it was asked for.',
  filled: 'Nothing was cached: one call for everyone who asked.',
};

/** @type {import('./main.js').Page} */
export const products = {
  path: '/products',
  name: 'Products',
  topics: ['jobs'],
  show(main) {
    const [searches, fresh, stale, calls] = [figure('Searches'), figure('Fresh'), figure('Stale at once'), figure('Plugin calls')];
    const search = searchCard();
    const plugins = pluginCard();
    const refreshes = refreshCard();
    main.append(head('Products', 'Searches through slow plugins: fresh or stale from the cache, one call at a time for a catalogue, one refresh behind.'),
      el('div', { class: 'stack' }, card('', el('dl', { class: 'figures' }, searches.node, fresh.node, stale.node, calls.node)),
        el('div', { class: 'split' }, el('div', { class: 'stack' }, plugins.node, refreshes.node), search.node)));
    const ends = [live.on('overview', (/** @type {import('./live.js').Overview} */ { totals: t, upstreams }) => {
      say(searches.value, number(t.searches ?? 0));
      say(fresh.value, share(t.searchesFresh ?? 0, t.searches ?? 0));
      say(stale.value, share(t.searchesStale ?? 0, t.searches ?? 0));
      say(calls.value, number(t.pluginCalls ?? 0));
      const known = upstreams.filter((one) => one.kind === 'plugin');
      plugins.update(known);
      search.plugins(known.map(({ name }) => name));
      void refreshes.look();
    }), live.on('jobs', () => void refreshes.look())];
    return () => ends.forEach((end) => end());
  },
};

function pluginCard() {
  const { node: rows, body } = table('Plugins', ['Plugin', 'State', 'Calls', 'Failed', 'Under way']);
  const none = empty('No plugin is configured', 'Add [products.plugins.NAME] to solely.toml.');
  const holder = el('div', { class: 'holder' });
  const keep = keyed(body, (/** @type {Upstream} */ one) => one.name, (one) => {
    const state = badge(one.state);
    const [calls, failed, busy] = [cell('Calls'), cell('Failed'), cell('Under way')];
    const node = el('tr', {}, cell('Plugin', el('strong', {}, one.name)), cell('State', state), calls, failed, busy);
    /** @param {Upstream} seen */
    const update = (seen) => {
      setBadge(state, seen.state, stateWords(seen));
      say(calls, number(seen.calls));
      say(failed, number(seen.failures));
      say(busy, `${seen.inFlight} of ${seen.concurrency}`);
    };
    return { node, update };
  });
  return {
    node: card('Plugins', holder),
    /** @param {Upstream[]} seen */
    update(seen) {
      keep(seen);
      either(holder, seen.length > 0, rows, none);
    },
  };
}

function refreshCard() {
  const { node: rows, body } = table('Refreshes of late', ['Catalogue', 'State', 'Attempts', 'Changed']);
  const none = empty('No refresh yet', 'The first search that finds a stale catalogue queues one, and is answered without waiting for it.');
  const holder = el('div', { class: 'holder' });
  let asked = 0;
  const keep = keyed(body, (/** @type {Job} */ job) => job.id, (job) => {
    const state = badge(job.state);
    const attempts = cell('Attempts');
    const changed = ago(job.updatedAt);
    const node = el('tr', {}, cell('Catalogue', explainLink(`products:${job.key}`, el('span', { class: 'key' }, job.key))), cell('State', state), attempts, cell('Changed', changed));
    /** @param {Job} seen */
    const update = (seen) => {
      setBadge(state, seen.state);
      say(attempts, String(seen.attempts));
      setTime(changed, seen.updatedAt);
    };
    return { node, update };
  });
  return {
    node: card('Refreshes of late', holder),
    async look() {
      if (Date.now() - asked < 1500 || document.hidden) return;
      asked = Date.now();
      try {
        const { items } = await get('/v1/jobs?queue=products&limit=15');
        keep(items);
        either(holder, items.length > 0, rows, none);
      } catch {
        // The next look says more.
      }
    },
  };
}

function searchCard() {
  const app = el('select', { id: 'app', required: true });
  const user = el('input', { id: 'user', type: 'text', value: 'ada', required: true, autocomplete: 'off' });
  const words = el('input', { id: 'words', type: 'text', placeholder: 'kayak', autocomplete: 'off' });
  const force = el('input', { id: 'force', type: 'checkbox' });
  const result = el('div', { 'aria-live': 'polite' });
  const button = el('button', { class: 'button primary', disabled: !may('products:read') }, 'Search');
  const form = el('form', {
    class: 'stack', onsubmit: async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        const began = performance.now();
        const answer = await post('/v1/products/search', {
          appKey: app.value, userId: user.value, forceRefresh: force.checked, payload: { searchInput: words.value },
        });
        fill(result, resultOf(answer, performance.now() - began));
      } catch (error) {
        fill(result, problem(error));
      } finally {
        button.disabled = false;
      }
    },
  },
  el('div', { class: 'field' }, el('label', { for: 'app' }, 'Plugin'), app),
  el('div', { class: 'field' }, el('label', { for: 'user' }, 'User'), user),
  el('div', { class: 'field' }, el('label', { for: 'words' }, 'Words'), words),
  el('div', { class: 'check' }, force, el('label', { for: 'force' }, 'Call the plugin in any case')), button);
  return {
    node: card('Try a search', form, result),
    /** @param {string[]} names */
    plugins(names) {
      if (app.dataset.shown === names.join()) return;
      app.dataset.shown = names.join();
      fill(app, names.map((name) => el('option', { value: name }, name)));
    },
  };
}

/** @param {any} answer @param {number} ms */
function resultOf(answer, ms) {
  const { cache, products: found } = answer;
  return el('div', { class: 'stack' },
    el('p', { class: 'lookup-result' }, badge(cache.state), el('span', {}, MEANING[cache.state] ?? ''), el('span', { class: 'small dim' }, `${Math.round(ms)} ms`),
      cache.lastUpdated && el('span', { class: 'small dim' }, 'written ', ago(cache.lastUpdated)), cache.refreshQueued && badge('ready', 'this search queued the refresh')),
    cache.error && el('p', { class: 'error-text' }, cache.error),
    found.length === 0 ? empty('No product has these words', 'Every word must be in the name of the product or of an option, an option id or the supplier.')
      : el('ul', {}, found.slice(0, 20).map((/** @type {any} */ product) => el('li', { class: 'product' }, el('strong', {}, product.productName), ' ', el('span', { class: 'small dim' }, (product.options ?? []).map((/** @type {any} */ option) => option.optionName).join(', '))))));
}
