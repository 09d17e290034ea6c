// @ts-check
// The frame: navigation, search, how the connection is, and the page that the address names.

import { isLoggedIn, loadSession, logout, may, onLoggedOut, session } from './api.js';
import { el, fill, find, mark, say } from './dom.js';
import { live } from './live.js';
import { loginPage } from './login.js';
import { empty, problem } from './parts.js';
import { alerts } from './alerts.js';
import { boxes } from './boxes.js';
import { enrich } from './enrich.js';
import { explain } from './explain.js';
import { jobs } from './jobs.js';
import { leases } from './leases.js';
import { overview } from './overview.js';
import { products } from './products.js';
import { runs } from './runs.js';
import { upstreams } from './upstreams.js';

/**
 * A page: what it is called, what it follows, and how it is shown. `show` returns what ends it.
 * @typedef {{ path: string, name: string, topics: import('./live.js').TopicName[],
 *   show: (main: HTMLElement, query: URLSearchParams) => (() => void) }} Page
 */

/** @type {{ title: string, pages: Page[] }[]} */
const GROUPS = [
  { title: '', pages: [overview] },
  { title: 'Systems', pages: [enrich, products, boxes, runs] },
  { title: 'Machinery', pages: [jobs, leases, upstreams] },
  { title: 'Answers', pages: [alerts, explain] },
];
const PAGES = GROUPS.flatMap(({ pages }) => pages);

let end = () => {};
let shown = '';

/** Goes to an address without loading the page again. @param {string} address */
export function go(address) {
  if (address !== location.pathname + location.search) history.pushState(null, '', address);
  show();
}

function show() {
  const main = find(document, '#main');
  const page = PAGES.find(({ path }) => path === location.pathname) ?? overview;
  end();
  end = () => {};
  document.title = `${page.name} · solely`;
  for (const link of document.querySelectorAll('nav a[data-path]')) {
    const here = link.getAttribute('data-path') === page.path;
    if (here) mark(link, 'aria-current', 'page');
    else link.removeAttribute('aria-current');
  }
  fill(main);
  live.want(page.topics);
  try {
    end = page.show(main, new URLSearchParams(location.search));
  } catch (error) {
    fill(main, problem(error, show));
  }
  showDenied(main, page);
  // Whoever follows a link by keyboard or ear is taken to the new page's head.
  if (shown && shown !== page.path) main.querySelector('h1')?.focus({ preventScroll: true });
  if (shown !== page.path) scrollTo(0, 0);
  shown = page.path;
  fitMenu();
}

/** What a topic needs beside the right to look at the dashboard. @type {Record<string, string>} */
const NEEDS = { runs: 'feed:read', boxes: 'reserve:read' };

/** Says what the login may not see, where a page would stay empty. @param {HTMLElement} main @param {Page} page */
function showDenied(main, page) {
  const missing = page.topics.map((topic) => NEEDS[topic]).find((scope) => scope && !may(scope));
  if (!missing) return;
  const denied = empty(`This needs the scope ${missing}`, 'Log in with a key that has it: ', el('code', {}, `solely keys create --name me --scope admin --scope ${missing}`));
  main.replaceChildren(...[...main.children].filter((child) => child.matches('.page-head')), el('section', { class: 'card' }, denied));
}

/** @param {Page} page */
function navLink(page) {
  return el('a', { href: page.path, 'data-path': page.path }, page.name,
    el('span', { class: 'nav-mark', 'data-mark': page.path }));
}

function navigation() {
  return GROUPS.map(({ title, pages }) => el('div', { class: 'nav-group' },
    title && el('p', { class: 'nav-title' }, title), el('ul', {}, pages.map((page) => el('li', {}, navLink(page))))));
}

const WIDE = matchMedia('(min-width: 60rem)');

/** The menu is open on a wide screen, and behind a button on a narrow one. */
function fitMenu() {
  const menu = document.getElementById('menu');
  if (menu instanceof HTMLDetailsElement) menu.open = WIDE.matches;
}

function frame() {
  const menu = el('details', { id: 'menu', class: 'menu' }, el('summary', {}, 'Menu'),
    el('nav', { 'aria-label': 'Pages' }, navigation(), demoLinks(), foot()));
  const side = el('div', { class: 'side' },
    el('a', { class: 'brand', href: '/' }, el('img', { src: '/dashboard/icon.svg', alt: '', width: 26, height: 26 }), 'solely'),
    menu);
  fill(find(document, '#app'), side,
    el('div', { class: 'body' }, topBar(), el('main', { id: 'main', tabindex: '-1' })),
    el('div', { id: 'toasts', class: 'toasts', role: 'status', 'aria-live': 'polite' }));
}

function demoLinks() {
  if (!session.demo) return null;
  return el('div', { class: 'nav-group' }, el('p', { class: 'nav-title' }, 'Demo'),
    el('ul', {}, el('li', {}, el('a', { href: '/demo/restaurants' }, 'Restaurants ↗')), el('li', {}, el('a', { href: '/demo/shop' }, 'Box shop ↗'))));
}

function foot() {
  return el('div', { class: 'nav-foot' },
    el('a', { href: '/docs' }, 'API'), el('span', {}, `v${session.version}`),
    session.auth === 'keys' && el('button', { type: 'button', class: 'link', onclick: () => void leave() }, 'Log out'));
}

async function leave() {
  live.stop();
  await logout();
  start();
}

function topBar() {
  const input = el('input', {
    id: 'search', type: 'search', placeholder: 'Any key: place, box, reservation, run, job', autocomplete: 'off',
    spellcheck: 'false', 'aria-label': 'Explain any key',
  });
  const form = el('form', {
    class: 'search', role: 'search', onsubmit: (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const key = input.value.trim();
      if (key) go(`/explain?key=${encodeURIComponent(key)}`);
    },
  }, input, el('kbd', { 'aria-hidden': 'true' }, '/'));
  return el('div', { class: 'top' }, form, el('div', { class: 'top-right' }, status(), themeButton()));
}

function status() {
  const text = el('span', {}, 'Connecting');
  const node = el('p', { class: 'status', role: 'status', 'data-state': 'connecting' }, el('i', { 'aria-hidden': 'true' }), text);
  const tell = () => {
    const { state, retryInMs } = live.status;
    mark(node, 'data-state', state);
    const words = { open: 'Live', connecting: 'Connecting', closed: 'Closed', waiting: `Again in ${Math.ceil(retryInMs / 1000)} s` };
    say(text, words[state]);
  };
  live.on('status', tell);
  live.on('refused', () => {
    mark(node, 'data-state', 'closed');
    say(text, session.auth === 'keys' ? 'No longer allowed' : 'Refused');
    if (session.auth === 'keys') void start();
  });
  tell();
  return node;
}

function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  const button = el('button', {
    type: 'button', class: 'theme', onclick: () => {
      root.dataset.theme = dark() ? 'light' : 'dark';
      try {
        localStorage.setItem('solely.theme', root.dataset.theme);
      } catch {
        // It holds until the page is closed.
      }
      name();
      document.dispatchEvent(new Event('themechange'));
    },
  });
  const name = () => {
    mark(button, 'aria-label', dark() ? 'Show it light' : 'Show it dark');
    say(button, dark() ? '☀' : '☾');
  };
  name();
  return button;
}

/** Marks beside pages that want a look. @param {import('./live.js').Overview} now */
function marks(now) {
  const firing = now.alerts.filter((alert) => alert.firing).length;
  const dead = now.queues.reduce((sum, queue) => sum + queue.dead, 0);
  const troubled = now.upstreams.filter((upstream) => upstream.state !== 'closed').length;
  for (const [path, count, what] of /** @type {const} */ ([['/alerts', firing, 'firing'], ['/jobs', dead, 'dead letters'], ['/upstreams', troubled, 'not called freely']])) {
    const place = document.querySelector(`[data-mark="${path}"]`);
    if (!place) continue;
    say(place, count > 0 ? String(count) : '');
    mark(place, 'title', count > 0 ? `${count} ${what}` : '');
  }
}

function follow() {
  document.addEventListener('click', (event) => {
    const link = event.target instanceof Element ? event.target.closest('a') : null;
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
    if (!link || !plain || link.target || link.origin !== location.origin) return;
    if (link.hash && link.pathname === location.pathname) return;
    if (!PAGES.some(({ path }) => path === link.pathname) || !document.querySelector('#main')) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
  document.addEventListener('keydown', (event) => {
    const typing = event.target instanceof HTMLElement && event.target.matches('input, select, textarea');
    if (event.key !== '/' || typing || event.metaKey || event.ctrlKey || event.altKey) return;
    const search = document.getElementById('search');
    if (!search) return;
    event.preventDefault();
    search.focus();
  });
  addEventListener('popstate', show);
  WIDE.addEventListener('change', fitMenu);
  live.on('overview', marks);
  onLoggedOut(() => {
    if (session.auth === 'keys' && isLoggedIn()) start();
  });
}

async function start() {
  const app = find(document, '#app');
  try {
    await loadSession();
  } catch (error) {
    fill(app, el('main', { id: 'main', class: 'alone' }, problem(error, start)));
    return;
  }
  end();
  end = () => {};
  if (!isLoggedIn()) {
    live.stop();
    fill(app, loginPage(start));
    return;
  }
  frame();
  live.start();
  show();
}

follow();
void start();
