// @ts-check
// What a person wants to know of a thing, answered from its events and from how it is now.

import { ApiError, get } from './api.js';
import { el } from './dom.js';
import { count, money, number, shortId, span } from './format.js';
import { live } from './live.js';
import { ago, now, until } from './time.js';
import { explainLink } from './parts.js';

/** @typedef {import('./words.js').Event} Event */
/** @typedef {[string, Node | string]} Answer */

/** @param {string} path @returns {Promise<any>} null if there is none */
async function maybe(path) {
  try {
    return await get(path);
  } catch (error) {
    if (error instanceof ApiError && [400, 403, 404].includes(error.status)) return null;
    throw error;
  }
}

/** @param {...(Node | string)} parts */
function text(...parts) {
  return el('span', {}, ...parts);
}

/** @param {Event[]} events @param {RegExp} name */
function last(events, name) {
  return events.findLast(({ event }) => name.test(event));
}

/**
 * @param {string} kind
 * @param {string} key
 * @param {Event[]} events
 * @returns {Promise<Answer[]>}
 */
export async function answersOf(kind, key, events) {
  switch (kind) {
    case 'place': return place(key, events);
    case 'job': return job(key, events);
    case 'run': return run(key, events);
    case 'reservation': return reservation(key, events);
    case 'inventory': return inventory(key, events);
    default: return products(events);
  }
}

/** @param {Event[]} events @returns {string | Node} */
function firstAsked(events) {
  const first = events.find(({ requestId }) => requestId);
  return first ? text('request ', el('span', { class: 'key' }, shortId(first.requestId ?? '')), ', ', ago(first.at)) : 'nobody by name: the server itself';
}

/** @param {string} key @param {Event[]} events @returns {Promise<Answer[]>} */
async function place(key, events) {
  /** @type {import('./live.js').Overview | undefined} */
  const seen = live.latest('overview');
  const providers = seen?.upstreams.filter((one) => one.kind === 'provider').map((one) => one.name) ?? ['wolt'];
  const entries = (await Promise.all(providers.map((name) => maybe(`/v1/enrich/${encodeURIComponent(name)}/places/${encodeURIComponent(key)}`)))).filter(Boolean);
  const entry = entries[0];
  const job = entry?.job ? await maybe(`/v1/jobs/${entry.job}`) : null;
  const written = last(events, /_(cache_written|lookup_failed)$/);
  const asked = new Set(events.map(({ requestId }) => requestId).filter(Boolean)).size;
  return [
    ['Who asked', events.length ? text(firstAsked(events), asked > 1 ? ` and ${count(asked - 1, 'later one')}` : '') : 'nobody yet'],
    ['Who won', written ? text(explainLink(`job:${written.details.job ?? ''}`, 'one lookup'), `, ${count(Number(written.details.attempts ?? 1), 'attempt')}`) : job ? text(explainLink(`job:${job.id}`, 'one lookup'), ', under way') : 'no lookup'],
    ['Who was told', written ? text('everyone who waited, ', ago(written.at)) : 'nobody yet: everyone who waits will be'],
    ['What failed', failure(events, job)],
    ['What happens next', nextOfPlace(entry, job)],
  ];
}

/** @param {Event[]} events @param {any} job @returns {string | Node} */
function failure(events, job) {
  if (job?.error) return job.error;
  const failed = last(events, /fail|dead|retry_scheduled/);
  return failed ? text(failed.reason ?? failed.event.replaceAll('_', ' '), ', ', ago(failed.at)) : 'nothing';
}

/** @param {any} entry @param {any} job @returns {string | Node} */
function nextOfPlace(entry, job) {
  if (job) return nextOfJob(job);
  if (entry?.expiresAt) return text('it is known; that ends ', until(entry.expiresAt), ', and whoever asks next has it looked up');
  return 'the next request has it looked up';
}

/** @param {any} job @returns {string | Node} */
function nextOfJob(job) {
  switch (job.state) {
    case 'ready': return Date.parse(job.runAt) > now() ? text('it runs ', until(job.runAt)) : 'it runs as soon as a worker is free';
    case 'retrying': return text('it is tried again ', until(job.runAt));
    case 'running': return job.lockedUntil ? text('a worker has it; its lock is renewed, else it is free ', until(job.lockedUntil)) : 'a worker has it';
    case 'dead': return text('nothing by itself: redrive it under ', el('a', { href: '/jobs' }, 'Jobs'));
    case 'completed': return 'nothing: it is done';
    default: return 'nothing: it was closed';
  }
}

/** @param {string} id @param {Event[]} events @returns {Promise<Answer[]>} */
async function job(id, events) {
  const found = await maybe(`/v1/jobs/${encodeURIComponent(id)}`);
  if (!found) return [['What happens next', 'nothing: it is gone, pruned after its retention']];
  const about = found.queue.startsWith('enrich:') ? explainLink(`place:${found.key}`, found.key)
    : found.attributes?.runId ? explainLink(`run:${found.attributes.runId}`, `its run, ${found.attributes.partitionId ?? ''}`) : found.key;
  return [
    ['What it is for', text(`${found.kind} of `, about)],
    ['Who asked', found.attributes?.requestId ? `request ${shortId(found.attributes.requestId)}` : firstAsked(events)],
    ['Who won', `${count(found.attempts, 'delivery', 'deliveries')} of at most ${found.maxAttempts}`],
    ['What failed', found.error ?? failure(events, null)],
    ['What happens next', nextOfJob(found)],
  ];
}

/** @param {string} id @param {Event[]} events @returns {Promise<Answer[]>} */
async function run(id, events) {
  const found = await maybe(`/v1/runs/${encodeURIComponent(id)}`);
  if (!found) return [];
  const failed = found.partitions.filter((/** @type {any} */ one) => one.status === 'failed');
  const link = el('a', { href: `/runs?run=${encodeURIComponent(id)}` }, 'under Runs');
  const next = {
    scheduling: 'the source is being counted and divided',
    running: found.etaSeconds !== null ? `it ends in about ${span(found.etaSeconds * 1000)}` : 'pages are fetched',
    consolidating: 'its result becomes current',
    completed: 'nothing: its result is current',
    failed: text('nothing by itself: retry what failed, or resume it, ', link),
    cancelled: text('nothing by itself: it can be resumed ', link),
  }[/** @type {string} */ (found.status)] ?? found.status;
  return [
    ['Who asked', firstAsked(events)],
    ['How far', `${number(found.recordsProcessed)} of ${number(found.totalRecords)} records, ${found.completedWorkers} of ${found.expectedWorkers} partitions`],
    ['What failed', failed.length > 0 ? `${failed.map((/** @type {any} */ one) => one.partitionId).join(', ')}: ${failed[0].error}` : found.error ?? 'nothing'],
    ['What happens next', next],
  ];
}

/** @param {string} id @param {Event[]} events @returns {Promise<Answer[]>} */
async function reservation(id, events) {
  const found = await maybe(`/v1/reservations/${encodeURIComponent(id)}`);
  if (!found) return [];
  const refused = last(events, /./) && events.filter(({ outcome }) => outcome === 'refused');
  const open = found.status === 'ACTIVE' || found.status === 'OFFERED';
  return [
    ['Who asked', text(found.userId, ', ', ago(found.reservedAt))],
    ['What they have', text(`${count(found.quantity, 'box', 'boxes')} of `, explainLink(`inventory:${found.boxInventoryId}`, found.boxInventoryId), ` for ${money(found.totalAmount, found.currency)}`)],
    ['What failed', refused && refused.length > 0 ? `${count(refused.length, 'attempt')} refused: ${refused.at(-1)?.reason ?? ''}` : 'nothing'],
    ['What happens next', !open ? `nothing: it is ${found.status.toLowerCase()}` : found.paymentStatus === 'PAID' ? text('it is paid; not collected, it ends ', until(found.expiresAt)) : text('unpaid, it lapses ', until(found.expiresAt), ' and the box goes to whoever is next')],
  ];
}

/** @param {string} id @param {Event[]} events @returns {Promise<Answer[]>} */
async function inventory(id, events) {
  const found = await maybe(`/v1/inventory/${encodeURIComponent(id)}`);
  if (!found) return [];
  const reserves = events.filter(({ event }) => event === 'reserve');
  const won = reserves.filter(({ outcome }) => outcome === 'done');
  const refused = reserves.filter(({ outcome }) => outcome === 'refused');
  const users = new Set(reserves.map(({ details }) => details.userId)).size;
  return [
    ['Who asked', count(users, 'buyer')],
    ['Who won', `${count(won.length, 'of them', 'of them')}, in the order in which they came`],
    ['What failed', refused.length > 0 ? `${number(refused.length)} refused, the last: ${(refused.at(-1)?.reason ?? '').toLowerCase().replaceAll('_', ' ')}` : 'nothing'],
    ['How it is', `${number(found.remainingQuantity)} of ${number(found.originalQuantity)} free at ${money(found.currentPrice, found.currency)}`],
    ['What happens next', found.status === 'EXPIRED' ? 'nothing: its window is over' : text('pickup ends ', until(found.pickupEnd))],
  ];
}

/** @param {Event[]} events @returns {Answer[]} */
function products(events) {
  const written = last(events, /cached|put|refresh|written/);
  return [
    ['Who asked', firstAsked(events)],
    ['Who won', written ? text('one call, ', ago(written.at)) : 'one call at a time'],
    ['What failed', failure(events, null)],
    ['What happens next', 'the first search after it is stale has it refreshed, once'],
  ];
}
