// @ts-check
// Events, told in sentences.

/** @typedef {{ at: string, subject: string, event: string, outcome: string | null, reason: string | null, requestId: string | null, details: Record<string, any> }} Event */
/** @typedef {'good' | 'warn' | 'bad' | ''} Tone */

/** @type {Record<string, (event: Event) => [string, Tone]>} */
const WORDS = {
  job_enqueued: ({ details: d }) => [`Queued in ${d.queue ?? 'its queue'}`, ''],
  job_running: () => ['A worker has it', ''],
  job_completed: () => ['Done', 'good'],
  job_retry_scheduled: ({ reason }) => [`Failed, and is tried again: ${reason ?? 'no reason'}`, 'warn'],
  job_dead: ({ reason }) => [`Given up: ${reason ?? 'no reason'}`, 'bad'],
  job_rescued: () => ['Its worker was gone; it is free again', 'warn'],
  job_revived: () => ['Brought back by hand', ''],
  job_cancelled: ({ reason }) => [`Cancelled${reason ? `: ${reason}` : ''}`, ''],
  run_started: ({ details: d }) => [`The run of ${d.source ?? 'its source'} was started (${d.mode ?? 'full'})`, ''],
  run_scheduled: ({ details: d }) => [`Divided into ${d.partitions} partitions of ${d.totalRecords} records in all`, ''],
  run_consolidating: () => ['All partitions have ended; the result is being made current', ''],
  run_completed: () => ['The result is current', 'good'],
  run_failed: ({ reason }) => [`The run failed${reason ? `: ${reason}` : ''}`, 'bad'],
  run_cancelled: () => ['The run was cancelled', 'warn'],
  run_resumed: () => ['The run was resumed', ''],
  partition_completed: ({ details: d }) => [`${d.partitionId ?? 'A partition'} is complete`, 'good'],
  partition_failed: ({ details: d, reason }) => [`${d.partitionId ?? 'A partition'} failed: ${reason ?? 'no reason'}`, 'bad'],
  partition_retried: ({ details: d }) => [`${d.partitionId ?? 'A partition'} was set going again`, ''],
  partition_reset: ({ details: d }) => [`${d.partitionId ?? 'A partition'} was set to offset ${d.nextOffset ?? '?'}`, ''],
  partition_stuck: ({ details: d }) => [`${d.partitionId ?? 'A partition'} made no progress and was set going again`, 'warn'],
  feed_offset_mismatch: () => ['A message that was late or double changed nothing', ''],
  create: ({ details: d }) => [`Put on offer: ${d.quantity ?? '?'} boxes`, ''],
  change: ({ outcome }) => [outcome === 'refused' ? 'A change was refused' : 'The offer was changed', ''],
  reserve: (event) => act(event, 'holds', 'wanted one and was refused'),
  confirm: (event) => act(event, 'has paid for', 'could not pay'),
  collect: (event) => act(event, 'has collected', 'could not collect'),
  cancel: (event) => act(event, 'has given back', 'could not cancel'),
  extend: (event) => act(event, 'has more time for', 'got no more time'),
  accept: (event) => act(event, 'has accepted an offer of', 'could not accept'),
  offer: (event) => act(event, 'is offered', 'could not be offered one'),
  join: (event) => act(event, 'waits in line for', 'could not join the line'),
  leave: (event) => act(event, 'has left the line for', 'could not leave the line'),
  expire: ({ details: d }) => [`The hold of ${d.userId ?? 'somebody'} has lapsed; the box is free again`, 'warn'],
  products_put: () => ['A catalogue was put by hand', 'good'],
};

/** @param {Event} event @param {string} did @param {string} refused @returns {[string, Tone]} */
function act({ details: d, outcome, reason }, did, refused) {
  const who = d.userId ?? 'Somebody';
  if (outcome === 'refused') return [`${who} ${refused}: ${(reason ?? '').toLowerCase().replaceAll('_', ' ')}`, 'warn'];
  return [`${who} ${did} ${d.quantity ?? 1} ${(d.quantity ?? 1) === 1 ? 'box' : 'boxes'}`, 'good'];
}

/** Events whose name begins with a provider's. @type {[string, (event: Event) => [string, Tone]][]} */
const OF_PROVIDERS = [
  ['_job_enqueued', ({ reason }) => [`A lookup was queued: ${reason === 'cache_miss' ? 'nothing was known' : (reason ?? 'asked for').replaceAll('_', ' ')}`, '']],
  ['_cache_written', ({ outcome, details: d }) => [outcome === 'FOUND' ? `Found: ${d.url ?? ''}` : 'Looked up: it has no page', outcome === 'FOUND' ? 'good' : '']],
  ['_lookup_failed', ({ reason }) => [`The lookup failed for good${reason ? `: ${reason}` : ''}`, 'bad']],
  ['_entry_forgotten', () => ['What was known was forgotten by hand', 'warn']],
];

/** What happened, and how that is. @param {Event} event @returns {[string, Tone]} */
export function words(event) {
  const known = WORDS[event.event];
  if (known) return known(event);
  const provider = OF_PROVIDERS.find(([ending]) => event.event.endsWith(ending));
  if (provider) return provider[1](event);
  const tone = /fail|dead|refus/.test(`${event.event} ${event.outcome}`) ? 'bad' : event.outcome === 'done' ? 'good' : '';
  const said = event.event.replaceAll('_', ' ');
  return [`${said.charAt(0).toUpperCase()}${said.slice(1)}${event.reason ? `: ${event.reason}` : ''}`, tone];
}
