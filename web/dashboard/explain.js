// @ts-check
// From any key to its story: who asked, who won, who was told, what failed, what happens next and when.

import { ApiError, get } from './api.js';
import { answersOf } from './answers.js';
import { el, fill } from './dom.js';
import { live } from './live.js';
import { badge, card, empty, explainLink, head, problem } from './parts.js';
import { timeline } from './timeline.js';

const KINDS = ['place', 'products', 'inventory', 'reservation', 'run', 'job'];
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

/** @type {import('./main.js').Page} */
export const explain = {
  path: '/explain',
  name: 'Explain',
  topics: ['jobs'],
  show(main, query) {
    const key = (query.get('key') ?? '').trim();
    const body = el('div', { class: 'stack' });
    const input = el('input', { id: 'explain-key', type: 'text', value: key, placeholder: 'place:ChIJ123, a box, a reservation, a run, a job', autocomplete: 'off', spellcheck: 'false' });
    const form = el('form', {
      class: 'form', onsubmit: (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const wanted = input.value.trim();
        history.pushState(null, '', `/explain?key=${encodeURIComponent(wanted)}`);
        ends.splice(0).forEach((end) => end());
        void open(wanted);
      },
    }, el('div', { class: 'field' }, el('label', { for: 'explain-key' }, 'Key'), input), el('button', { class: 'button primary' }, 'Explain'));
    main.append(head('Explain', 'Every decision that changes something is a row, written with it. Here they are read in order.'),
      el('div', { class: 'stack' }, card('', form), body));
    /** @type {(() => void)[]} */
    const ends = [];
    let asked = 0;

    /** @param {string} wanted */
    async function open(wanted) {
      asked += 1;
      const mine = asked;
      fill(body);
      if (!wanted) {
        body.append(suggestions(ends));
        return;
      }
      fill(body, el('p', { class: 'dim', role: 'status' }, 'Looking for it.'));
      try {
        const subjects = await subjectsOf(wanted);
        if (mine !== asked) return;
        fill(body);
        if (subjects.length === 0) {
          body.append(card('', empty(`Nothing is known of ${wanted}`, 'It may have been pruned, or be written differently. A place is known by its placeId, everything else by its id.')));
        }
        for (const subject of subjects) {
          const shown = story(subject);
          ends.push(shown.end);
          body.append(shown.node);
        }
      } catch (error) {
        if (mine === asked) fill(body, problem(error, () => void open(wanted)));
      }
    }
    void open(key);
    return () => {
      asked += 1;
      ends.forEach((end) => end());
    };
  },
};

/**
 * What a key may stand for: itself, if it says; else whatever has events, or a job's key.
 * @param {string} key
 * @returns {Promise<string[]>}
 */
async function subjectsOf(key) {
  const kind = key.split(':')[0] ?? '';
  if (KINDS.includes(kind) && key.length > kind.length + 1) return [key];
  const kinds = UUID.test(key) ? ['job', 'reservation', 'run', 'inventory', 'place'] : ['place', 'inventory', 'products', 'run', 'reservation', 'job'];
  const told = await Promise.all(kinds.map(async (kind) => {
    try {
      const page = await get(`/v1/timeline?${new URLSearchParams({ subject: `${kind}:${key}`, limit: '1' })}`);
      return page.items.length > 0 ? [`${kind}:${key}`] : [];
    } catch (error) {
      if (error instanceof ApiError && error.status === 400) return [];
      throw error;
    }
  }));
  const found = told.flat();
  if (found.length > 0) return found;
  const byKey = await get(`/v1/jobs?${new URLSearchParams({ key, limit: '3' })}`);
  return byKey.items.map((/** @type {{ id: string }} */ job) => `job:${job.id}`);
}

/** @param {string} subject */
function story(subject) {
  const [kind = '', ...rest] = subject.split(':');
  const key = rest.join(':');
  const answers = el('dl', { class: 'answers' });
  let asking = false;
  const told = timeline(subject, async (events) => {
    if (asking) return;
    asking = true;
    try {
      const found = await answersOf(kind, key, events);
      fill(answers, found.map(([question, answer]) => el('div', {}, el('dt', {}, question), el('dd', {}, answer))));
    } finally {
      asking = false;
    }
  });
  const node = el('section', { class: 'card stack', 'data-subject': subject },
    el('h2', {}, badge('ready', kind), ' ', el('span', { class: 'key' }, key)), answers, told.node);
  return { node, end: told.end };
}

/** Something to begin with: what has happened of late. @param {(() => void)[]} ends */
function suggestions(ends) {
  const list = el('ul', { class: 'stack small' });
  const node = card('Of late', list);
  const end = live.on('jobs', (/** @type {{ items: { id: string, key: string, queue: string, state: string }[] }} */ { items }) => {
    const seen = new Map(items.map((job) => [job.queue, job]));
    for (const job of items) if (job.state === 'dead' || job.state === 'retrying') seen.set(`${job.queue} ${job.state}`, job);
    const rows = [...seen.values()].slice(0, 8).map((job) => el('li', {}, badge(job.state), ' ', explainLink(job.queue.startsWith('enrich:') ? `place:${job.key}` : `job:${job.id}`, el('span', { class: 'key' }, job.key)), ' ', el('span', { class: 'dim' }, job.queue)));
    fill(list, rows.length > 0 ? rows : el('li', { class: 'dim' }, 'Nothing yet: a key from any page, or from a log, can be explained.'));
  });
  ends.push(end);
  return node;
}
