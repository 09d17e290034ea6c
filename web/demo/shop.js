// @ts-check
// A shop window: what is left and what it costs, as it moves; and the visitor's own reservation, from hold
// to collection. Whoever finds a box sold out may wait in line.

import { connect } from '../client.js';
import { el, fill, find, keyed, mark, say } from '../dashboard/dom.js';
import { money, number } from '../dashboard/format.js';
import { action, badge, bar, empty, setBadge } from '../dashboard/parts.js';
import { now, setTime, until } from '../dashboard/time.js';

/** @typedef {{ id: string, boxTypeId: string, originalQuantity: number, remainingQuantity: number, price: number, currentPrice: number, currency: string, pickupEnd: string, status: string }} Box */
/** @typedef {{ id: string, userId: string, boxInventoryId: string, status: string, paymentStatus: string, pickupCode: string, totalAmount: number, currency: string, reservedAt: string, expiresAt: string }} Reservation */
/** @typedef {{ id: string, position: number, status: string }} Entry */

/** @type {Record<string, string>} */
const NAMES = { 'surprise-bag': 'Surprise bag', 'bread-box': 'Bread box', 'cake-box': 'Cake box' };
/** How often the window looks at everything, for what push does not tell: new boxes, prices that fall. */
const LOOK_EVERY_MS = 3000;

const user = visitor();
say(find(document, '#who'), user);

/** The visitor is the same in all windows. */
function visitor() {
  const asked = new URLSearchParams(location.search).get('user');
  if (asked) return asked;
  const known = localStorage.getItem('solely.demo.visitor') ?? `visitor-${Math.random().toString(36).slice(2, 7)}`;
  localStorage.setItem('solely.demo.visitor', known);
  return known;
}

/** @param {string} method @param {string} path @param {object} [body] @returns {Promise<any>} */
async function ask(method, path, body) {
  const answer = await fetch(path, { method, body: body && JSON.stringify(body), headers: body ? { 'Content-Type': 'application/json' } : {} });
  const text = await answer.text();
  const said = text ? JSON.parse(text) : null;
  if (!answer.ok) throw Object.assign(new Error(said?.message ?? `The server answered ${answer.status}.`), { code: said?.error });
  return said;
}

/** @type {Map<string, Box>} */
const boxes = new Map();
/** @type {Reservation | null} */
let mine = null;
/** Where the visitor waits, by box. @type {Map<string, Entry>} */
const waits = new Map();
/** @type {Map<string, () => void>} */
const followed = new Map();

const status = find(document, '#status');
const solely = connect({
  onStatus: ({ state }) => {
    mark(status, 'data-state', state);
    say(find(status, 'span'), state === 'open' ? 'Live' : 'Connecting');
    if (state === 'open') void look();
  },
});
solely.subscribe({ channel: 'reservations', userId: user }, (message) => {
  if (message.type.startsWith('reservation.')) void look();
});

/** Follows each box that is on offer, and none that is not. */
function follow() {
  for (const [id, end] of followed) {
    if (boxes.has(id)) continue;
    end();
    followed.delete(id);
  }
  for (const id of boxes.keys()) {
    if (followed.has(id)) continue;
    followed.set(id, solely.subscribe({ channel: 'inventory', inventoryId: id }, (message) => {
      const box = boxes.get(id);
      if (message.type !== 'INVENTORY_PATCH' || !box) return;
      boxes.set(id, { ...box, ...message.patch });
      show();
    }));
  }
}

async function look() {
  try {
    const [active, soldOut, held, offered] = await Promise.all([
      ask('GET', '/v1/inventory?status=ACTIVE&limit=50'), ask('GET', '/v1/inventory?status=SOLD_OUT&limit=50'),
      ask('GET', `/v1/reservations?userId=${encodeURIComponent(user)}&status=ACTIVE`), ask('GET', `/v1/reservations?userId=${encodeURIComponent(user)}&status=OFFERED`),
    ]);
    boxes.clear();
    for (const box of [...active.items, ...soldOut.items]) boxes.set(box.id, box);
    mine = offered.items[0] ?? held.items[0] ?? null;
    if (mine) waits.delete(mine.boxInventoryId);
    follow();
    show();
  } catch {
    // The next look may find it; the connection says that it is away.
  }
}

/** @param {string} verb @param {string} said @param {object} [body] */
function step(verb, said, body = {}) {
  return async () => {
    await ask('POST', `/v1/reservations/${mine?.id}/${verb}`, body);
    await look();
    return said;
  };
}

let shownMine = '';
function showMine() {
  const place = find(document, '#mine');
  const key = mine ? `${mine.id} ${mine.status} ${mine.paymentStatus} ${mine.expiresAt}` : '';
  if (key === shownMine) return;
  shownMine = key;
  if (!mine) {
    fill(place);
    return;
  }
  const paid = mine.paymentStatus === 'PAID';
  const offered = mine.status === 'OFFERED';
  const title = offered ? 'A box has come free: it is yours if you want it' : paid ? 'Paid. Show this code to collect' : 'Held for you';
  fill(place, el('section', { class: 'card mine', 'data-reservation': mine.id, 'data-state': offered ? 'OFFERED' : paid ? 'PAID' : 'HELD' },
    el('div', {}, el('h2', {}, title), el('p', { class: 'dim' }, `${NAMES[boxes.get(mine.boxInventoryId)?.boxTypeId ?? ''] ?? mine.boxInventoryId} for ${money(mine.totalAmount, mine.currency)} · `, paid ? 'collect ' : 'ends ', until(mine.expiresAt))),
    !offered && el('p', { class: 'code-word', 'aria-label': 'Pickup code' }, mine.pickupCode),
    el('div', { class: 'actions' },
      offered && action('Accept', step('accept', 'It is held for you.'), { kind: 'primary' }),
      !offered && !paid && action('Pay', step('confirm', 'Paid. Collect it with your code.'), { kind: 'primary' }),
      !offered && paid && action('Collect', step('collect', 'Enjoy!', { pickupCode: mine.pickupCode }), { kind: 'primary' }),
      action(offered ? 'No, thanks' : 'Give it back', step('cancel', 'It is free for others.'), { kind: 'quiet' }))));
}

/** @param {Box} box */
function card(box) {
  const state = badge(box.status);
  const [left, price, was] = [el('span'), el('span', { class: 'price' }), el('span', { class: 'was' })];
  const stock = bar(`Left of ${box.id}`);
  const end = until(box.pickupEnd);
  const line = el('p', { class: 'small dim' });
  const hold = action('Hold one', async () => {
    await ask('POST', '/v1/reservations', { userId: user, boxInventoryId: box.id, maxPrice: boxes.get(box.id)?.currentPrice });
    await look();
    return 'It is yours for a while: pay before the time is over.';
  }, { kind: 'primary', describe: `Hold one of ${box.id}` });
  const wait = action('Wait in line', async () => {
    const entry = await ask('POST', `/v1/inventory/${encodeURIComponent(box.id)}/waitlist`, { userId: user });
    waits.set(box.id, entry);
    await look();
    return entry.status === 'OFFERED' ? 'One is free: it is offered to you.' : `You are number ${entry.position} in line.`;
  }, { describe: `Wait in line for ${box.id}` });
  const node = el('li', { class: 'card offer', 'data-box': box.id },
    el('div', { class: 'offer-top' }, el('div', {}, el('strong', {}, NAMES[box.boxTypeId] ?? box.boxTypeId), el('p', { class: 'small dim key' }, box.id)), state),
    el('p', { class: 'offer-price' }, price, ' ', was), stock.node,
    el('p', { class: 'small' }, left, ' · pickup ends ', end), line, el('div', { class: 'actions' }, hold, wait));
  /** @param {Box} seen */
  const update = (seen) => {
    const none = seen.remainingQuantity === 0;
    setBadge(state, none ? 'SOLD_OUT' : seen.status, none ? 'sold out' : 'on offer');
    say(left, `${number(seen.remainingQuantity)} of ${number(seen.originalQuantity)} left`);
    mark(left, 'data-left', String(seen.remainingQuantity));
    stock.set(seen.remainingQuantity, seen.originalQuantity, seen.remainingQuantity <= seen.originalQuantity / 5 ? 'warn' : '');
    say(price, money(seen.currentPrice, seen.currency));
    say(was, seen.currentPrice < seen.price ? money(seen.price, seen.currency) : '');
    setTime(end, seen.pickupEnd);
    const entry = waits.get(seen.id);
    say(line, entry ? `You wait here as number ${entry.position}.` : '');
    line.hidden = !entry;
    hold.hidden = none || Boolean(mine);
    wait.hidden = !none || Boolean(entry) || Boolean(mine);
  };
  return { node, update };
}

const list = find(document, '#offers');
const keep = keyed(list, (/** @type {Box} */ box) => box.id, card);
const nothing = el('li', {}, empty('Nothing is on offer right now', 'The next sale begins within a minute.'));

function show() {
  const open = [...boxes.values()].filter((box) => Date.parse(box.pickupEnd) > now());
  showMine();
  keep(open.sort((a, b) => b.id.localeCompare(a.id)));
  if (open.length === 0) list.append(nothing);
  else nothing.remove();
}

setInterval(() => {
  if (!document.hidden) void look();
}, LOOK_EVERY_MS);
void look();
