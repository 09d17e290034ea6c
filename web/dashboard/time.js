// @ts-check
// Times that go on by themselves: one clock for the whole page, set by the server's.

import { el, mark, say } from './dom.js';
import { exact, span } from './format.js';

let offsetMs = 0;

/** The server's clock is believed; the browser's may be wrong. @param {string} iso */
export function setClock(iso) {
  const offset = Date.parse(iso) - Date.now();
  if (Number.isFinite(offset)) offsetMs = offset;
}

/** Now, on the server's clock. */
export function now() {
  return Date.now() + offsetMs;
}

/** Later than anything that is meant: "until somebody resumes it". @param {string} iso */
export function isForever(iso) {
  return iso.startsWith('9999');
}

/** @param {string} iso @param {'ago' | 'until'} kind */
function words(iso, kind) {
  const ms = Date.parse(iso) - now();
  if (kind === 'until') return ms <= 0 ? 'over' : `in ${span(ms)}`;
  return ms > -1500 ? 'just now' : `${span(-ms)} ago`;
}

/** @param {string} iso @param {'ago' | 'until'} kind */
function element(iso, kind) {
  return el('time', { datetime: iso, 'data-kind': kind, title: exact(iso) }, words(iso, kind));
}

/** How long ago something was. @param {string} iso */
export function ago(iso) {
  return element(iso, 'ago');
}

/** How long it is until something. @param {string} iso */
export function until(iso) {
  return element(iso, 'until');
}

/** Points a time that is shown at another instant. @param {HTMLElement} time @param {string} iso */
export function setTime(time, iso) {
  if (time.getAttribute('datetime') === iso) return;
  mark(time, 'datetime', iso);
  mark(time, 'title', exact(iso));
  tick(time);
}

/** @param {HTMLElement} time */
function tick(time) {
  const kind = time.dataset.kind === 'until' ? 'until' : 'ago';
  say(time, words(time.getAttribute('datetime') ?? '', kind));
}

setInterval(() => {
  if (document.hidden) return;
  for (const time of document.querySelectorAll('time[data-kind]')) {
    if (time instanceof HTMLElement) tick(time);
  }
}, 1000);
