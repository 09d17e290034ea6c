// @ts-check
// A subject's events, in order, followed for as long as they are shown.

import { get } from './api.js';
import { el, fill, keyed } from './dom.js';
import { clock } from './format.js';
import { ago } from './time.js';
import { empty, explainLink, problem } from './parts.js';
import { words } from './words.js';

/** @typedef {import('./words.js').Event} Event */

const LOOK_EVERY_MS = 2000;
/** Events that are shown at first, and then each time that more are asked for. */
const SHOWN = 30;

/**
 * @param {string} subject
 * @param {(events: Event[]) => void} [heard]
 */
export function timeline(subject, heard = () => {}) {
  const list = el('ol', { class: 'timeline', 'aria-label': `What happened to ${subject}` });
  let shown = SHOWN;
  const more = el('button', {
    type: 'button', class: 'button', onclick: () => {
      shown += SHOWN * 3;
      draw();
    },
  }, 'Show earlier ones');
  const node = el('div', { class: 'stack' }, list, more);
  /** @type {(Event & { nth: number })[]} */
  let events = [];
  /** @type {string | null} */
  let cursor = null;
  let over = false;
  const keep = keyed(list, (/** @type {Event & { nth: number }} */ event) => `${event.at} ${event.event} ${event.nth}`, (event) => row(event, subject));

  /** A whole page is followed by another; what is behind the last whole one is asked for again. */
  async function look() {
    let base = events.filter(({ nth }) => nth < settled);
    for (let pages = 0; pages < 20; pages += 1) {
      const parts = new URLSearchParams({ subject, limit: '200', ...(cursor ? { cursor } : {}) });
      const page = await get(`/v1/timeline?${parts}`);
      base = [...base, ...page.items.map((/** @type {Event} */ event, /** @type {number} */ nth) => ({ ...event, nth: settled + nth }))];
      if (!page.nextCursor) break;
      cursor = page.nextCursor;
      settled = base.length;
    }
    events = base;
  }
  let settled = 0;

  function draw() {
    keep(events.slice(-shown).reverse());
    more.hidden = events.length <= shown;
  }

  async function show() {
    if (over || (document.hidden && events.length > 0)) return;
    try {
      await look();
      if (over) return;
      draw();
      if (events.length === 0) fill(node, empty('Nothing is told of it', 'No event has this subject: it is not known here, or its events were pruned.'));
      else if (!node.contains(list)) fill(node, list, more);
      heard(events);
    } catch (error) {
      if (!over && events.length === 0) fill(node, problem(error, () => void show()));
    }
  }
  const timer = setInterval(() => void show(), LOOK_EVERY_MS);
  void show();
  return {
    node,
    end() {
      over = true;
      clearInterval(timer);
    },
  };
}

/** @param {Event} event @param {string} about */
function row(event, about) {
  const [said, tone] = words(event);
  const more = Object.keys(event.details ?? {}).length > 0 || event.requestId;
  const job = typeof event.details?.job === 'string' ? event.details.job : null;
  const node = el('li', { class: tone },
    el('p', { class: 'what' }, said),
    el('p', { class: 'when' }, ago(event.at), ` · ${clock(event.at)}`, job && [' · ', explainLink(`job:${job}`, 'its job')],
      event.subject !== about && [' · ', explainLink(event.subject, 'more of it')]),
    more && el('details', {}, el('summary', {}, event.event),
      el('pre', {}, JSON.stringify({ ...event.details, ...(event.requestId ? { requestId: event.requestId } : {}) }, null, 2))));
  return { node, update: () => {} };
}
