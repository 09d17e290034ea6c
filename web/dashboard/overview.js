// @ts-check
// The overview: how much of what was asked was answered without work, what needs a look, and the four
// systems as they go.

import { chart, legend } from './chart.js';
import { el, fill, keyed, say } from './dom.js';
import { count, number, rate, share, span, took } from './format.js';
import { live } from './live.js';
import { ago, isForever, now, until } from './time.js';
import { badge, card, cell, either, empty, head, setBadge, table } from './parts.js';
import { stateWords } from './upstreams.js';

/** @typedef {import('./live.js').Overview} Overview */
/** @typedef {import('./live.js').Queue} Queue */
/** @typedef {import('./live.js').Upstream} Upstream */

/**
 * @typedef {object} System
 * @property {string} name
 * @property {string} path
 * @property {string} rate Which counter its figure is of.
 * @property {string} unit
 * @property {import('./chart.js').Line[]} lines
 * @property {(now: Overview) => [string, string][]} facts
 */

/** @type {System[]} */
const SYSTEMS = [
  {
    name: 'Enrich', path: '/enrich', rate: 'places', unit: 'places a second',
    lines: [{ name: 'places', label: 'Places asked for' }, { name: 'lookups', label: 'Looked up', tone: 'quiet' }],
    facts: ({ totals: t }) => [
      [share((t.places ?? 0) - (t.placesMissed ?? 0), t.places ?? 0), 'known already'],
      [number(t.lookupsShared ?? 0), 'lookups shared'],
      [took((t.lookupSeconds ?? 0) / (t.lookups || NaN)), 'a lookup'],
    ],
  },
  {
    name: 'Products', path: '/products', rate: 'searches', unit: 'searches a second',
    lines: [{ name: 'searches', label: 'Searches' }, { name: 'pluginCalls', label: 'Plugin calls', tone: 'quiet' }],
    facts: ({ totals: t }) => [
      [share(t.searchesFresh ?? 0, t.searches ?? 0), 'fresh'],
      [share(t.searchesStale ?? 0, t.searches ?? 0), 'stale at once'],
      [number(t.pluginCalls ?? 0), 'plugin calls'],
    ],
  },
  {
    name: 'Boxes', path: '/boxes', rate: 'reserveAsked', unit: 'buyers a second',
    lines: [{ name: 'reserveAsked', label: 'Buyers' }, { name: 'reserved', label: 'Got one', tone: 'quiet' }],
    facts: ({ totals: t }) => [
      [number(t.reserved ?? 0), 'held'], [number(t.paid ?? 0), 'paid'], [number(t.collected ?? 0), 'collected'],
      [number(t.expired ?? 0), 'lapsed'],
    ],
  },
  {
    name: 'Runs', path: '/runs', rate: 'records', unit: 'records a second',
    lines: [{ name: 'records', label: 'Records' }],
    facts: ({ totals: t }) => [
      [number(t.records ?? 0), 'records'], [number(t.pages ?? 0), 'pages, each once'], [number(t.pagesFailed ?? 0), 'pages failed'],
    ],
  },
];

/** @type {import('./main.js').Page} */
export const overview = {
  path: '/',
  name: 'Overview',
  topics: [],
  show(main) {
    const hero = heroCard();
    const firing = el('div', { 'aria-live': 'polite' });
    const systems = SYSTEMS.map(systemCard);
    const queues = queueTable();
    const upstreams = upstreamTable();
    main.append(head('Overview', 'One caller does the work; everyone gets the answer.'),
      el('div', { class: 'stack' }, hero.node, firing,
        el('div', { class: 'overview-grid' }, systems.map(({ node }) => node)),
        el('div', { class: 'overview-grid' }, queues.node, upstreams.node)));
    const ends = [live.on('overview', (/** @type {Overview} */ seen) => {
      hero.update(seen);
      showFiring(firing, seen);
      for (const system of systems) system.update(seen);
      queues.update(seen.queues);
      upstreams.update(seen.upstreams);
    }), live.on('history', () => systems.forEach((system) => system.redraw()))];
    return () => {
      for (const end of ends) end();
      for (const system of systems) system.end();
    };
  },
};

function heroCard() {
  const big = el('p', { class: 'hero-number' }, '–');
  const text = el('p', { class: 'hero-text' }, 'The server is being asked.');
  const [store, redis, since] = [el('span'), el('span'), el('span')];
  const node = el('section', { class: 'card hero', 'aria-label': 'Work saved' }, big, text, el('div', { class: 'hero-side' }, store, redis, since));
  return {
    node,
    /** @param {Overview} seen */
    update({ totals: t, store: { kind, ok }, redis: companion, since: began }) {
      const asked = (t.places ?? 0) + (t.searches ?? 0);
      const called = (t.lookups ?? 0) + (t.pluginCalls ?? 0);
      say(big, asked > 0 ? share(Math.max(0, asked - called), asked) : '–');
      say(text, asked > 0
        ? `of ${count(asked, 'answer')} needed no work: ${count(called, 'call')} to slow upstreams did for all of them.`
        : 'Nothing has been asked yet. Rates and charts begin with the first request.');
      say(store, ok ? `Store: ${kind}` : `Store: ${kind}, away`);
      say(redis, companion.configured ? `Redis: ${companion.ok ? 'used' : 'away, slower and no different'}` : 'Redis: none, none needed');
      say(since, `This process: up ${span(now() - Date.parse(began))}`);
    },
  };
}

/** @param {HTMLElement} place @param {Overview} seen */
function showFiring(place, { alerts }) {
  const firing = alerts.filter((alert) => alert.firing);
  const shown = firing.map(({ name }) => name).join() || 'none';
  if (place.dataset.shown === shown) return;
  place.dataset.shown = shown;
  if (firing.length === 0) {
    fill(place, el('p', { class: 'calm' }, badge('done', 'calm'), 'Nothing needs a look: no alert fires.'));
    return;
  }
  fill(place, el('ul', { class: 'firing' }, firing.map((alert) => el('li', {},
    badge('firing'), el('a', { href: '/alerts' }, alert.name.replaceAll('_', ' ')), el('span', {}, alert.message),
    alert.since && el('span', { class: 'dim small' }, 'since ', ago(alert.since))))));
}

/** @param {System} system */
function systemCard(system) {
  const figure = el('span', {}, '0');
  const facts = el('p', { class: 'facts' });
  const drawn = chart(system.lines, `${system.name}: ${system.lines.map(({ label }) => label.toLowerCase()).join(' and ')} over the last three minutes`);
  const node = el('section', { class: 'card system' },
    el('div', { class: 'system-head' }, el('h2', {}, el('a', { href: system.path }, system.name)),
      el('p', { class: 'system-rate' }, figure, el('small', {}, system.unit))),
    drawn.node, legend(system.lines), facts);
  return {
    node,
    end: drawn.end,
    redraw: drawn.update,
    /** @param {Overview} seen */
    update(seen) {
      say(figure, rate(live.rate(system.rate)));
      fill(facts, system.facts(seen).map(([value, what]) => el('span', {}, el('b', {}, value), ` ${what}`)));
      drawn.update();
    },
  };
}

function queueTable() {
  const { node: rows, body } = table('Queues', ['Queue', 'Waiting', 'Running', 'Dead', 'Oldest'], 'compact');
  const none = empty('No queue has anything to do', 'Queues appear with the first job: a place that is looked up, a page that is fetched.');
  const holder = el('div', { class: 'holder' });
  /** @param {Queue} queue */
  const make = (queue) => {
    const [ready, running, dead, oldest] = ['Waiting', 'Running', 'Dead', 'Oldest'].map((column) => cell(column));
    const node = el('tr', {}, cell('Queue', el('a', { href: `/jobs?queue=${encodeURIComponent(queue.name)}`, class: 'key' }, queue.name)), ready, running, dead, oldest);
    /** @param {Queue} seen */
    const update = (seen) => {
      say(/** @type {Element} */ (ready), number(seen.ready));
      say(/** @type {Element} */ (running), number(seen.running));
      say(/** @type {Element} */ (dead), number(seen.dead));
      say(/** @type {Element} */ (oldest), seen.pausedUntil ? 'paused' : seen.ready > 0 ? span(seen.oldestAgeMs) : '–');
    };
    return { node, update };
  };
  const keep = keyed(body, (/** @type {Queue} */ queue) => queue.name, make);
  return {
    node: card('Queues', holder),
    /** @param {Queue[]} queues */
    update(queues) {
      keep(queues);
      either(holder, queues.length > 0, rows, none);
    },
  };
}

function upstreamTable() {
  const { node: rows, body } = table('Upstreams', ['Upstream', 'State', 'Calls', 'Failed'], 'compact');
  const none = empty('No upstream is configured', 'Providers, plugins and sources are sections of solely.toml.');
  const holder = el('div', { class: 'holder' });
  /** @param {Upstream} upstream */
  const make = (upstream) => {
    const state = badge(upstream.state);
    const [calls, failed] = [cell('Calls'), cell('Failed')];
    const node = el('tr', {}, cell('Upstream', el('span', {}, el('a', { href: '/upstreams' }, upstream.name), ' ', el('span', { class: 'dim small' }, upstream.kind))), cell('State', state), calls, failed);
    /** @param {Upstream} seen */
    const update = (seen) => {
      setBadge(state, seen.state, stateWords(seen));
      say(calls, number(seen.calls));
      say(failed, number(seen.failures));
    };
    return { node, update };
  };
  const keep = keyed(body, (/** @type {Upstream} */ one) => `${one.kind} ${one.name}`, make);
  return {
    node: card('Upstreams', holder),
    /** @param {Upstream[]} upstreams */
    update(upstreams) {
      keep(upstreams);
      either(holder, upstreams.length > 0, rows, none);
    },
  };
}

/** Until when something is paused, in words. @param {string} iso */
export function pausedWords(iso) {
  return isForever(iso) ? el('span', {}, 'until somebody resumes it') : until(iso);
}
