// @ts-check
// What pages are made of.

import { ApiError } from './api.js';
import { el, fill, mark, say } from './dom.js';

/** @typedef {import('./dom.js').Child} Child */

/** The head of a page: what it is, in a sentence. @param {string} title @param {string} about @param {...Child} actions */
export function head(title, about, ...actions) {
  return el('header', { class: 'page-head' },
    el('div', {}, el('h1', { tabindex: '-1' }, title), el('p', { class: 'about' }, about)),
    actions.length > 0 && el('div', { class: 'actions' }, actions));
}

/** @param {string} title @param {...(Child | Child[])} children */
export function card(title, ...children) {
  return el('section', { class: 'card' }, title ? el('h2', {}, title) : null, ...children);
}

/** Tones of words that have a state. @type {Record<string, string>} */
const TONES = {
  FOUND: 'good', ACTIVE: 'good', COMPLETED: 'good', PAID: 'good', completed: 'good', closed: 'good', fresh: 'good',
  filled: 'good', refreshed: 'good', done: 'good', granted: 'good', ready: 'plain', running: 'accent',
  PENDING: 'accent', scheduling: 'accent', consolidating: 'accent', retrying: 'warn', paused: 'warn', stale: 'warn',
  OFFERED: 'warn', SOLD_OUT: 'warn', stuck: 'warn', 'half-open': 'warn', dead: 'bad', failed: 'bad', open: 'bad',
  firing: 'bad', LOCKED: 'bad',
};

/** A word that says how something is. @param {string} word @param {string} [shown] */
export function badge(word, shown = word) {
  return el('span', { class: `badge ${TONES[word] ?? 'plain'}`, 'data-state': word }, spoken(shown));
}

/** Words of the server are in capitals where people's are not. @param {string} word */
function spoken(word) {
  return /^[A-Z_]+$/.test(word) ? word.replaceAll('_', ' ').toLowerCase() : word;
}

/** Brings a badge up to date. @param {HTMLElement} element @param {string} word @param {string} [shown] */
export function setBadge(element, word, shown = word) {
  mark(element, 'class', `badge ${TONES[word] ?? 'plain'}`);
  mark(element, 'data-state', word);
  say(element, spoken(shown));
}

/** Where there is nothing: why, and what would put something there. @param {string} what @param {...Child} why */
export function empty(what, ...why) {
  return el('div', { class: 'empty' }, el('strong', {}, what), el('p', {}, ...why));
}

/** What went wrong, and what to do. @param {unknown} error @param {(() => void) | null} [again] */
export function problem(error, again = null) {
  const code = error instanceof ApiError ? error.code : 'ERROR';
  const message = error instanceof Error ? error.message : String(error);
  return el('div', { class: 'problem', role: 'alert' },
    el('strong', {}, message), el('p', {}, advice(error), ' ', el('code', {}, code)),
    again && el('button', { type: 'button', class: 'button', onclick: again }, 'Try again'));
}

/** @param {unknown} error */
function advice(error) {
  const status = error instanceof ApiError ? error.status : -1;
  if (status === 0) return 'The page goes on by itself as soon as it answers.';
  if (status === 403) return 'Log in with a key that has this scope.';
  if (status === 404) return 'It may have been pruned, or never was.';
  if (status === 503) return 'The store is away; what is in memory is still served.';
  return '';
}

/**
 * A button that does something at the server: it says so while it does, and what went wrong.
 * @param {string} label
 * @param {() => Promise<string | void>} work What to say when it is done.
 * @param {{ confirm?: string, kind?: 'primary' | 'danger' | 'quiet', describe?: string, disabled?: string | false }} [how]
 */
export function action(label, work, how = {}) {
  const button = el('button', {
    type: 'button', class: `button ${how.kind ?? ''}`, 'aria-label': how.describe ?? label,
    title: how.disabled || null, disabled: Boolean(how.disabled),
    onclick: async () => {
      if (how.confirm && !(await confirmed(how.confirm, label))) return;
      button.disabled = true;
      mark(button, 'aria-busy', 'true');
      try {
        const said = await work();
        if (said) toast(said);
      } catch (error) {
        toast(error instanceof Error ? error.message : String(error), 'bad');
      } finally {
        button.disabled = false;
        button.removeAttribute('aria-busy');
      }
    },
  }, label);
  return button;
}

/** Asks first. @param {string} question @param {string} verb @returns {Promise<boolean>} */
export function confirmed(question, verb) {
  return new Promise((resolve) => {
    const dialog = el('dialog', { class: 'dialog', 'aria-labelledby': 'question' },
      el('form', { method: 'dialog' }, el('p', { id: 'question' }, question),
        el('div', { class: 'actions' },
          el('button', { class: 'button', value: 'no' }, 'Leave it'),
          el('button', { class: 'button primary', value: 'yes' }, verb))));
    dialog.addEventListener('close', () => {
      resolve(dialog.returnValue === 'yes');
      dialog.remove();
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

/** Says something for a while, where screen readers hear it. @param {string} text @param {'good' | 'bad'} [tone] */
export function toast(text, tone = 'good') {
  const place = document.getElementById('toasts');
  if (!place) return;
  const said = el('p', { class: `toast ${tone}` }, text);
  place.append(said);
  setTimeout(() => said.remove(), tone === 'bad' ? 9000 : 4500);
}

/**
 * A table whose rows are brought up to date in place. On a phone each row is a card, unless it is narrow enough as it is.
 * @param {string} caption
 * @param {string[]} columns
 * @param {'compact' | ''} [kind]
 */
export function table(caption, columns, kind = '') {
  const body = el('tbody');
  const node = el('div', { class: `table ${kind}`, role: 'region', 'aria-label': caption, tabindex: '0' },
    el('table', {}, el('caption', { class: 'unseen' }, caption),
      el('thead', {}, el('tr', {}, columns.map((column) => el('th', { scope: 'col' }, column)))), body));
  return { node, body };
}

/** A cell that says which column it is of, for phones. @param {string} column @param {...(Child | Child[])} children */
export function cell(column, ...children) {
  return el('td', { 'data-column': column }, ...children);
}

/** A number and what it is. @param {string} label @param {Child} [value] */
export function figure(label, value = '–') {
  const shown = el('dd', {}, value);
  return { node: el('div', { class: 'figure' }, el('dt', {}, label), shown), value: shown };
}

/** A bar, and what it says in words. @param {string} label */
export function bar(label) {
  const inner = el('i');
  const node = el('div', { class: 'bar', role: 'progressbar', 'aria-label': label, 'aria-valuemin': 0, 'aria-valuemax': 100 }, inner);
  return {
    node,
    /** @param {number} part @param {number} whole @param {string} [tone] */
    set(part, whole, tone = '') {
      const percent = whole > 0 ? Math.min(100, (part / whole) * 100) : 0;
      inner.style.width = `${percent}%`;
      mark(node, 'aria-valuenow', String(Math.round(percent)));
      mark(node, 'class', `bar ${tone}`);
    },
  };
}

/** A link to why something is as it is. @param {string} subject @param {Child} [shown] */
export function explainLink(subject, shown = 'Explain') {
  return el('a', { href: `/explain?key=${encodeURIComponent(subject)}` }, shown);
}

/** Shows either rows or that there are none. @param {Element} holder @param {boolean} any @param {HTMLElement} rows @param {HTMLElement} none */
export function either(holder, any, rows, none) {
  const wanted = any ? rows : none;
  if (holder.firstElementChild !== wanted) fill(holder, wanted);
}
