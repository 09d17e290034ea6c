// @ts-check
// Queues, jobs and dead letters; pausing, resuming, retrying, redriving.

import { get, may, post } from './api.js';
import { el, fill, keyed, mark, say } from './dom.js';
import { count, number, shortId, span } from './format.js';
import { live } from './live.js';
import { ago, isForever, setTime, until } from './time.js';
import { action, badge, card, cell, either, empty, explainLink, head, problem, setBadge, table } from './parts.js';

/** @typedef {import('./live.js').Queue} Queue */
/** @typedef {{ id: string, queue: string, kind: string, key: string, state: string, attempts: number, maxAttempts: number, runAt: string, lockedUntil: string | null, error: string | null, attributes: object, createdAt: string, updatedAt: string }} Job */

const STATES = ['ready', 'running', 'retrying', 'completed', 'dead', 'cancelled'];
const denied = () => (may('admin:write') ? false : 'This needs the scope admin:write');

/** @type {import('./main.js').Page} */
export const jobs = {
  path: '/jobs',
  name: 'Jobs',
  topics: ['jobs'],
  show(main, query) {
    const queues = queueCard();
    const facts = el('p', { class: 'facts' });
    const letters = deadCard();
    const recent = recentCard(query);
    main.append(head('Jobs', 'Durable work, unique by key while it is queued, running or waiting to retry. What cannot be done becomes a dead letter, and none is lost.'),
      el('div', { class: 'stack' }, queues.node, letters.node, recent.node));
    queues.node.append(facts);
    const ends = [
      live.on('overview', (/** @type {import('./live.js').Overview} */ seen) => {
        queues.update(seen.queues);
        fill(facts, factsOf(seen.totals));
        recent.queues(seen.queues);
      }),
      live.on('jobs', (/** @type {{ items: Job[], dead: Job[] }} */ seen) => {
        letters.update(seen.dead);
        recent.update(seen.items);
      }),
    ];
    return () => ends.forEach((end) => end());
  },
};

/** What became of jobs since this process began. @param {import('./live.js').Totals} t */
function factsOf(t) {
  /** @type {[number | undefined, string][]} */
  const facts = [[t.jobsMade, 'made'], [t.jobsShared, 'asked for again while they were there'], [t.jobsDone, 'done'], [t.jobsRetried, 'tried again'],
    [t.jobsRescued, 'taken back from workers that were gone'], [t.jobsDead, 'given up']];
  return facts.map(([value, what]) => el('span', {}, el('b', {}, number(value ?? 0)), ` ${what}`));
}

function queueCard() {
  const { node: rows, body } = table('Queues', ['Queue', 'Waiting', 'Running', 'Dead', 'Oldest', 'State', '']);
  const none = empty('No queue has anything to do', 'A queue appears with its first job.');
  const holder = el('div', { class: 'holder' });
  const keep = keyed(body, (/** @type {Queue} */ queue) => queue.name, queueRow);
  return {
    node: card('Queues', holder),
    /** @param {Queue[]} queues */
    update(queues) {
      keep(queues);
      either(holder, queues.length > 0, rows, none);
    },
  };
}

/** @param {Queue} queue */
function queueRow(queue) {
  const [ready, running, dead, oldest] = [cell('Waiting'), cell('Running'), cell('Dead'), cell('Oldest')];
  const state = cell('State');
  const path = `/v1/queues/${encodeURIComponent(queue.name)}`;
  const pause = action('Pause', async () => {
    await post(`${path}/pause`);
    return `${queue.name} is paused: nothing of it is claimed.`;
  }, { describe: `Pause ${queue.name}`, confirm: `Pause ${queue.name}? What runs goes on; nothing more is claimed until somebody resumes it.`, disabled: denied() });
  const resume = action('Resume', async () => {
    await post(`${path}/resume`);
    return `${queue.name} goes on.`;
  }, { describe: `Resume ${queue.name}`, kind: 'primary', disabled: denied() });
  const node = el('tr', { 'data-queue': queue.name }, cell('Queue', el('span', { class: 'key' }, queue.name)), ready, running, dead, oldest, state, cell('', pause, resume));
  /** @param {Queue} seen */
  const update = (seen) => {
    say(ready, number(seen.ready));
    say(running, number(seen.running));
    say(dead, number(seen.dead));
    say(oldest, seen.ready > 0 ? span(seen.oldestAgeMs) : '–');
    const shown = seen.pausedUntil ?? 'worked';
    if (state.dataset.shown !== shown) {
      state.dataset.shown = shown;
      fill(state, seen.pausedUntil ? badge('paused') : badge('completed', 'worked'), ' ',
        seen.pausedUntil && el('span', { class: 'small dim' }, isForever(seen.pausedUntil) ? 'until resumed' : until(seen.pausedUntil)));
    }
    pause.hidden = Boolean(seen.pausedUntil);
    resume.hidden = !seen.pausedUntil;
  };
  return { node, update };
}

function deadCard() {
  const { node: rows, body } = table('Dead letters', ['Job', 'Queue', 'Error', 'Attempts', 'Died', '']);
  const none = empty('No dead letters', 'A job whose attempts are spent, or that can never work, would wait here to be redriven.');
  const holder = el('div', { class: 'holder' });
  const all = action('Redrive all', async () => {
    const { redriven, superseded } = await post('/v1/dead-letters/redrive');
    return `${count(redriven, 'job')} brought back${superseded ? `, ${superseded} closed: newer jobs have their keys` : ''}.`;
  }, { kind: 'primary', confirm: 'Bring every dead letter back? Each is tried again as if it were new.', disabled: denied() });
  const keep = keyed(body, (/** @type {Job} */ job) => job.id, deadRow);
  const heading = el('div', { class: 'box-top' }, el('h2', {}, 'Dead letters'), all);
  return {
    node: el('section', { class: 'card stack', id: 'dead' }, heading, holder),
    /** @param {Job[]} dead */
    update(dead) {
      keep(dead);
      all.hidden = dead.length === 0;
      either(holder, dead.length > 0, rows, none);
    },
  };
}

/** @param {Job} job */
function deadRow(job) {
  const [error, attempts] = [cell('Error'), cell('Attempts')];
  error.classList.add('error-text');
  const died = ago(job.updatedAt);
  const again = action('Redrive', async () => {
    await post(`/v1/jobs/${job.id}/retry`);
    return 'The job is back in its queue.';
  }, { describe: `Redrive ${job.key}`, disabled: denied() });
  const node = el('tr', { 'data-job': job.id }, cell('Job', explainLink(`job:${job.id}`, el('span', { class: 'key' }, shortKey(job.key)))), cell('Queue', job.queue), error, attempts, cell('Died', died), cell('', again));
  /** @param {Job} seen */
  const update = (seen) => {
    say(error, seen.error ?? '');
    say(attempts, `${seen.attempts} of ${seen.maxAttempts}`);
    setTime(died, seen.updatedAt);
  };
  return { node, update };
}

/** A key, with the ids in it shortened. @param {string} key */
function shortKey(key) {
  return key.split(':').map(shortId).join(':');
}

/** @param {URLSearchParams} query */
function recentCard(query) {
  const queue = el('select', { id: 'job-queue' }, el('option', { value: '' }, 'All queues'));
  const state = el('select', { id: 'job-state' }, el('option', { value: '' }, 'All states'), STATES.map((word) => el('option', { value: word }, word)));
  const key = el('input', { id: 'job-key', type: 'text', placeholder: 'Exact key', autocomplete: 'off', value: query.get('key') });
  let wanted = query.get('queue') ?? '';
  const { node: rows, body } = table('Jobs, newest first', ['Job', 'Queue', 'State', 'Attempts', 'Changed']);
  const none = empty('No such job', 'Completed jobs are pruned after their retention; other filters may find more.');
  const holder = el('div', { class: 'holder' });
  const keep = keyed(body, (/** @type {Job} */ job) => job.id, jobRow);
  let asked = 0;

  /** @param {Job[]} items */
  const show = (items) => {
    keep(items);
    either(holder, items.length > 0, rows, none);
  };
  const filtered = () => Boolean(wanted || state.value || key.value.trim());
  const ask = async () => {
    asked = Date.now();
    const parts = new URLSearchParams({ limit: '50' });
    if (wanted) parts.set('queue', wanted);
    if (state.value) parts.set('state', state.value);
    if (key.value.trim()) parts.set('key', key.value.trim());
    try {
      show((await get(`/v1/jobs?${parts}`)).items);
    } catch (error) {
      fill(holder, problem(error, ask));
    }
  };
  queue.addEventListener('change', () => {
    wanted = queue.value;
    void ask();
  });
  state.addEventListener('change', () => void ask());
  key.addEventListener('change', () => void ask());
  if (filtered()) void ask();
  return {
    node: card('Jobs', el('div', { class: 'form' },
      el('div', { class: 'field' }, el('label', { for: 'job-queue' }, 'Queue'), queue),
      el('div', { class: 'field' }, el('label', { for: 'job-state' }, 'State'), state),
      el('div', { class: 'field' }, el('label', { for: 'job-key' }, 'Key'), key)), holder),
    /** @param {Job[]} items */
    update(items) {
      if (!filtered()) show(items);
      // What is filtered is asked for: jobs have changed, but perhaps not these.
      else if (Date.now() - asked > 2000 && !document.hidden) void ask();
    },
    /** @param {Queue[]} known */
    queues(known) {
      const names = [...new Set([...known.map(({ name }) => name), ...(wanted ? [wanted] : [])])];
      if (queue.dataset.shown === names.join()) return;
      queue.dataset.shown = names.join();
      fill(queue, el('option', { value: '' }, 'All queues'), names.map((name) => el('option', { value: name, selected: name === wanted }, name)));
      queue.value = wanted;
    },
  };
}

/** @param {Job} job */
function jobRow(job) {
  const state = badge(job.state);
  const attempts = cell('Attempts');
  const changed = ago(job.updatedAt);
  const next = el('span', { class: 'small dim' });
  const node = el('tr', {}, cell('Job', explainLink(`job:${job.id}`, el('span', { class: 'key' }, shortKey(job.key)))), cell('Queue', job.queue), cell('State', state, ' ', next), attempts, cell('Changed', changed));
  /** @param {Job} seen */
  const update = (seen) => {
    setBadge(state, seen.state);
    say(attempts, `${seen.attempts} of ${seen.maxAttempts}`);
    setTime(changed, seen.updatedAt);
    const waits = seen.state === 'retrying';
    if (waits && next.dataset.at !== seen.runAt) {
      next.dataset.at = seen.runAt;
      fill(next, until(seen.runAt));
    } else if (!waits && next.dataset.at) {
      delete next.dataset.at;
      fill(next);
    }
    mark(node, 'title', seen.error ?? '');
  };
  return { node, update };
}
