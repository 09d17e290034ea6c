// @ts-check
// Runs of feeds: a bar for each partition, what is stuck or failed, and what can be done about it.

import { get, may, post } from './api.js';
import { el, fill, keyed, mark, say } from './dom.js';
import { number, rate, shortId, span } from './format.js';
import { live } from './live.js';
import { ago, now, setTime } from './time.js';
import { action, badge, bar, card, either, empty, explainLink, figure, head, setBadge } from './parts.js';

/** @typedef {{ partitionId: string, minPrice: number, maxPrice: number, totalRecords: number | null, nextOffset: number, completed: boolean, status: string, recordsProcessed: number, attempts: number, error: string | null, stuck: boolean, updatedAt: string }} Partition */
/** @typedef {{ status: string, added: number, changed: number, unchanged: number, removed: number }} Consolidation */
/** @typedef {{ runId: string, source: string, mode: string, status: string, expectedWorkers: number, completedWorkers: number, failedWorkers: number, recordsProcessed: number, totalRecords: number, recordsPerSecond: number, etaSeconds: number | null, error: string | null, startedAt: string, completedAt: string | null, consolidation: Consolidation | null, partitions: Partition[] }} Run */

const denied = () => (may('feed:write') ? false : 'This needs the scope feed:write');

/** @type {import('./main.js').Page} */
export const runs = {
  path: '/runs',
  name: 'Runs',
  topics: ['runs'],
  show(main, query) {
    let chosen = query.get('run');
    const starts = el('div', { class: 'actions' });
    const list = el('div', { class: 'run-list' });
    const detail = el('div');
    const none = empty('No run yet', 'A run copies a source page by page. Start one above, or with solely runs start.');
    const nowhere = empty('No source is configured', 'A section [feed.sources.NAME] of solely.toml names one; solely sandbox has one to try.');
    const holder = el('div', { class: 'holder' });
    const shown = el('div', { class: 'split' }, detail, card('Runs', list));
    main.append(head('Runs', 'A source copied one page per message: the page, its progress and the next message are one transaction, so a worker may die at any moment.', starts), holder);

    /** @type {Run[]} */
    let known = [];
    /** One that was asked for and is not among the newest. @type {Run | null} */
    let older = null;
    /** @type {ReturnType<typeof detailOf> | null} */
    let open = null;
    const draw = () => {
      const run = known.find(({ runId }) => runId === chosen) ?? known[0];
      keep(known);
      for (const row of list.children) mark(row, 'aria-pressed', String(row.getAttribute('data-run') === run?.runId));
      if (!run) return;
      if (open?.id !== run.runId) {
        open = detailOf(run);
        fill(detail, open.node);
      }
      open.update(run);
    };
    const keep = keyed(list, (/** @type {Run} */ run) => run.runId, (run) => runRow(run, () => {
      chosen = run.runId;
      history.replaceState(null, '', `/runs?run=${encodeURIComponent(chosen)}`);
      draw();
    }));
    return live.on('runs', async (/** @type {{ items: Run[], sources: string[] }} */ { items, sources }) => {
      known = items;
      if (chosen && !items.some(({ runId }) => runId === chosen)) {
        older ??= await get(`/v1/runs/${encodeURIComponent(chosen)}`).catch(() => null);
        if (older) known = [...items, older];
      }
      showStarts(starts, sources, items);
      either(holder, items.length > 0, shown, sources.length > 0 ? none : nowhere);
      draw();
    });
  },
};

/** @param {HTMLElement} place @param {string[]} sources @param {Run[]} known */
function showStarts(place, sources, known) {
  const active = (/** @type {string} */ source) => known.some((run) => run.source === source && ['scheduling', 'running', 'consolidating'].includes(run.status));
  const wanted = sources.map((source) => `${source} ${active(source)}`).join();
  if (place.dataset.shown === wanted) return;
  place.dataset.shown = wanted;
  fill(place, sources.map((source) => action(`Start ${source}`, async () => {
    await post('/v1/runs', { source });
    return `A run of ${source} has started.`;
  }, { kind: 'primary', disabled: denied() || (active(source) ? `A run of ${source} is active` : false) })));
}

/** @param {Run} run @param {() => void} choose */
function runRow(run, choose) {
  const state = badge(run.status);
  const progress = bar(`Progress of run ${run.runId}`);
  const records = el('span', { class: 'small dim nowrap' });
  const started = ago(run.startedAt);
  const node = el('button', { type: 'button', class: 'run-row', 'data-run': run.runId, 'aria-pressed': 'false', onclick: choose },
    el('span', { class: 'key' }, shortId(run.runId)), state, el('span', { class: 'small dim' }, run.source, ' · ', started), records, progress.node);
  /** @param {Run} seen */
  const update = (seen) => {
    setBadge(state, seen.status);
    progress.set(seen.recordsProcessed, seen.totalRecords, seen.status === 'failed' ? 'bad' : '');
    say(records, number(seen.recordsProcessed));
    setTime(started, seen.startedAt);
  };
  return { node, update };
}

/** @param {Run} run */
function detailOf(run) {
  const state = badge(run.status);
  const whole = bar('Progress of the whole run');
  const [records, speed, eta, parts] = [figure('Records'), figure('A second'), figure('Left'), figure('Partitions')];
  const outcome = el('p', { class: 'small' });
  const trouble = el('p', { class: 'error-text' });
  const actions = el('div', { class: 'actions' });
  const list = el('div', {});
  const keep = keyed(list, (/** @type {Partition} */ partition) => partition.partitionId, (partition) => partitionRow(run, partition));
  const node = el('section', { class: 'card stack', 'aria-label': `Run ${run.runId}` },
    el('div', { class: 'box-top' },
      el('div', {}, el('h2', {}, `${run.source}, ${run.mode}`), el('p', { class: 'small dim' }, el('span', { class: 'key' }, run.runId), ' · ', explainLink(`run:${run.runId}`))), state),
    el('dl', { class: 'figures' }, records.node, speed.node, eta.node, parts.node), whole.node, outcome, trouble, actions, list);
  /** @param {Run} seen */
  const update = (seen) => {
    setBadge(state, seen.status);
    const running = seen.status === 'running';
    say(records.value, seen.totalRecords ? `${number(seen.recordsProcessed)} of ${number(seen.totalRecords)}` : number(seen.recordsProcessed));
    say(speed.value, rate(seen.recordsPerSecond));
    say(eta.value, running && seen.etaSeconds !== null ? span(seen.etaSeconds * 1000) : '–');
    say(parts.value, `${seen.completedWorkers} of ${seen.expectedWorkers}`);
    whole.set(seen.recordsProcessed, seen.totalRecords, seen.status === 'failed' ? 'bad' : '');
    say(outcome, consolidationWords(seen));
    outcome.hidden = !seen.consolidation;
    say(trouble, seen.error ?? '');
    trouble.hidden = !seen.error;
    showActions(actions, seen);
    keep([...seen.partitions].sort((a, b) => urgency(b) - urgency(a)));
  };
  return { id: run.runId, node, update };
}

/** What needs a look comes first; the others stay in their order. @param {Partition} partition */
function urgency({ status, stuck }) {
  return status === 'failed' ? 2 : stuck && status === 'running' ? 1 : 0;
}

/** @param {Run} run */
function consolidationWords({ consolidation: c }) {
  if (!c) return '';
  if (c.status === 'skipped') return 'Not consolidated: a partition failed. What was current before still is.';
  if (c.status === 'running') return 'It is being made current; readers see the old state until that is done.';
  return `Current: ${number(c.added)} added, ${number(c.changed)} changed, ${number(c.unchanged)} unchanged, ${number(c.removed)} removed.`;
}

/** @param {HTMLElement} place @param {Run} run */
function showActions(place, run) {
  if (place.dataset.shown === run.status) return;
  place.dataset.shown = run.status;
  const change = (/** @type {string} */ verb, /** @type {string} */ said) => async () => {
    await post(`/v1/runs/${run.runId}/${verb}`);
    return said;
  };
  fill(place,
    ['scheduling', 'running'].includes(run.status) && action('Cancel run', change('cancel', 'The run is cancelled.'), {
      kind: 'danger', confirm: 'Cancel this run? What is current stays; it can be resumed later.', disabled: denied(),
    }),
    ['failed', 'cancelled'].includes(run.status) && action('Resume run', change('resume', 'The unfinished partitions go on.'), { kind: 'primary', disabled: denied() }));
  place.hidden = place.childElementCount === 0;
}

/** @param {Run} run @param {Partition} partition */
function partitionRow(run, partition) {
  const progress = bar(`Progress of ${partition.partitionId}`);
  const state = badge(partition.status);
  const records = el('span');
  const trouble = el('p', { class: 'error-text' });
  const moved = el('span', { class: 'small dim' });
  const retry = action('Retry', async () => {
    await post(`/v1/runs/${run.runId}/partitions/${encodeURIComponent(partition.partitionId)}/retry`);
    return `${partition.partitionId} goes on from where it was.`;
  }, { describe: `Retry ${partition.partitionId}`, disabled: denied() });
  const node = el('div', { class: 'partition', 'data-partition': partition.partitionId },
    el('div', { class: 'partition-name' }, el('strong', {}, partition.partitionId),
      el('span', { class: 'small dim' }, `${number(partition.minPrice)} to ${number(partition.maxPrice)}`), state, moved),
    el('div', { class: 'partition-right' }, records, retry), progress.node, trouble);
  /** @param {Partition} seen */
  const update = (seen) => {
    const stuck = seen.stuck && seen.status === 'running';
    setBadge(state, stuck ? 'stuck' : seen.status);
    const total = seen.totalRecords ?? 0;
    say(records, total ? `${number(seen.recordsProcessed)} / ${number(total)}` : number(seen.recordsProcessed));
    const tone = seen.status === 'failed' ? 'bad' : stuck ? 'warn' : '';
    if (seen.completed) progress.set(1, 1, tone);
    else progress.set(seen.recordsProcessed, total, tone);
    say(trouble, seen.error ?? '');
    trouble.hidden = !seen.error;
    retry.hidden = seen.status !== 'failed';
    say(moved, stuck ? `no progress for ${span(now() - Date.parse(seen.updatedAt))}` : '');
  };
  return { node, update };
}
