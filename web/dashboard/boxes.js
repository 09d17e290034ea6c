// @ts-check
// Boxes: what is left, who holds what and for how long, and who waits in line.

import { ApiError, get, may, patch, post } from './api.js';
import { el, fill, keyed, mark, say } from './dom.js';
import { count, money, number, shortId } from './format.js';
import { live } from './live.js';
import { now, setTime, until } from './time.js';
import { action, badge, bar, card, cell, either, empty, explainLink, head, setBadge, table } from './parts.js';

/** @typedef {{ id: string, merchantId: string, boxTypeId: string, originalQuantity: number, remainingQuantity: number, price: number, currentPrice: number, currency: string, pickupStart: string, pickupEnd: string, status: string }} Box */
/** @typedef {{ id: string, userId: string, boxInventoryId: string, status: string, paymentStatus: string, quantity: number, totalAmount: number, currency: string, reservedAt: string, expiresAt: string }} Hold */
/** @typedef {{ id: string, userId: string, position: number, status: string, createdAt: string }} Waiting */

const denied = () => (may('reserve:write') ? false : 'This needs the scope reserve:write');

/** @type {import('./main.js').Page} */
export const boxes = {
  path: '/boxes',
  name: 'Boxes',
  topics: ['boxes'],
  show(main, query) {
    let chosen = query.get('box');
    const list = el('div', { class: 'boxes' });
    const detail = el('div');
    const holder = el('div', { class: 'holder' });
    const none = empty('No box is on offer', 'A merchant puts boxes on offer with POST /v1/inventory: how many, for what price, in which pickup window.');
    const all = el('div', { class: 'stack' }, list, detail);
    main.append(head('Boxes', 'Held, paid, collected, cancelled, expired: never one too many sold, never one lost. At every moment original = free + held + paid + collected + withdrawn.'), holder);
    /** @type {{ items: Box[], holds: Hold[] }} */
    let seen = { items: [], holds: [] };
    /** One that was asked for and is not on offer. @type {Box | null} */
    let other = null;
    /** @type {ReturnType<typeof detailOf> | null} */
    let open = null;
    const draw = () => {
      // What moves most is on top: sales before what is always there.
      const items = [...seen.items].sort((a, b) => heat(b, seen.holds) - heat(a, seen.holds) || b.id.localeCompare(a.id));
      keep(items);
      const box = items.find(({ id }) => id === chosen) ?? items[0];
      for (const node of list.children) mark(node, 'aria-pressed', String(node.getAttribute('data-box') === box?.id));
      if (!box) return;
      chosen ??= box.id;
      if (open?.id !== box.id) {
        open?.end();
        open = detailOf(box);
        fill(detail, open.node);
      }
      open.update(box, seen.holds.filter((hold) => hold.boxInventoryId === box.id));
    };
    const keep = keyed(list, (/** @type {Box} */ box) => box.id, (box) => boxCard(box, () => seen.holds, () => {
      chosen = box.id;
      history.replaceState(null, '', `/boxes?box=${encodeURIComponent(box.id)}`);
      draw();
    }));
    const end = live.on('boxes', async (/** @type {typeof seen} */ data) => {
      seen = data;
      if (chosen && !data.items.some(({ id }) => id === chosen)) {
        if (other?.id !== chosen) other = await get(`/v1/inventory/${encodeURIComponent(chosen)}`).catch(() => null);
        if (other) seen = { ...data, items: [...data.items, other] };
      }
      either(holder, seen.items.length > 0, all, none);
      draw();
    });
    return () => {
      end();
      open?.end();
    };
  },
};

/** @param {Box} box @param {Hold[]} holds */
function heat(box, holds) {
  return holds.filter((hold) => hold.boxInventoryId === box.id).length;
}

/** @param {Box} box @param {() => Hold[]} holds @param {() => void} choose */
function boxCard(box, holds, choose) {
  const state = badge(box.status);
  const left = el('span');
  const stock = stockBar(box);
  const words = el('p', { class: 'facts' });
  const price = el('span');
  const was = el('span', { class: 'was' });
  const end = until(box.pickupEnd);
  const node = el('button', { type: 'button', class: 'card box-card', 'data-box': box.id, 'aria-pressed': 'false', onclick: choose },
    el('span', { class: 'box-top' }, el('span', {}, el('strong', { class: 'key' }, box.id), el('br'), el('span', { class: 'small dim' }, `${box.boxTypeId} · ${box.merchantId}`)), state),
    el('span', { class: 'box-top' }, el('span', { class: 'box-left' }, left, el('small', {}, ' left')), el('span', {}, was, price)),
    stock.node, words, el('span', { class: 'small dim' }, 'Pickup ends ', end));
  /** @param {Box} seen */
  const update = (seen) => {
    const mine = holds().filter((hold) => hold.boxInventoryId === seen.id);
    const held = sum(mine.filter((hold) => hold.paymentStatus !== 'PAID'));
    const paid = sum(mine.filter((hold) => hold.paymentStatus === 'PAID'));
    setBadge(state, seen.status);
    say(left, number(seen.remainingQuantity));
    stock.set(seen, held, paid);
    say(words, `${held} held · ${paid} paid · of ${number(seen.originalQuantity)}`);
    say(price, money(seen.currentPrice, seen.currency));
    say(was, seen.currentPrice < seen.price ? money(seen.price, seen.currency) : '');
    setTime(end, seen.pickupEnd);
  };
  return { node, update };
}

/** @param {Hold[]} holds */
function sum(holds) {
  return holds.reduce((total, hold) => total + hold.quantity, 0);
}

/** @param {Box} box */
function stockBar(box) {
  const [gone, reserved] = [el('i', { class: 'paid' }), el('i', { class: 'held' })];
  const node = el('span', { class: 'stock', role: 'img', 'aria-label': `Stock of ${box.id}` }, gone, reserved);
  return {
    node,
    /** @param {Box} seen @param {number} held @param {number} paid */
    set(seen, held, paid) {
      const sold = Math.max(paid, seen.originalQuantity - seen.remainingQuantity - held);
      gone.style.width = `${(sold / Math.max(1, seen.originalQuantity)) * 100}%`;
      reserved.style.width = `${(held / Math.max(1, seen.originalQuantity)) * 100}%`;
      mark(node, 'aria-label', `${seen.remainingQuantity} free, ${held} held, ${sold} sold, of ${seen.originalQuantity}`);
    },
  };
}

/** @param {Box} box */
function detailOf(box) {
  const path = `/v1/inventory/${encodeURIComponent(box.id)}`;
  const { node: rows, body } = table('Holds', ['Who', 'State', 'Amount', 'Until', '', '']);
  const none = empty('Nobody holds one', 'Holds appear as buyers reserve, and count down until they are paid or lapse.');
  const holder = el('div', { class: 'holder' });
  const keep = keyed(body, (/** @type {Hold} */ hold) => hold.id, holdRow);
  const line = waitingList(box.id);
  const add = action('Add 5 boxes', async () => {
    await patch(path, { addQuantity: 5 });
    return 'Five more are on offer.';
  }, { disabled: denied() });
  const close = action('Close', async () => {
    await patch(path, { status: 'CLOSED' });
    return `${box.id} is closed: what is held stays held.`;
  }, { kind: 'danger', confirm: `Close ${box.id}? Nobody can reserve from it until it is opened again.`, disabled: denied() });
  const heading = el('h2', {}, 'Holds');
  const node = el('div', { class: 'split' },
    el('section', { class: 'card stack' }, el('div', { class: 'box-top' }, el('div', {}, heading, el('p', { class: 'small dim' }, el('span', { class: 'key' }, box.id), ' · ', explainLink(`inventory:${box.id}`))), el('div', { class: 'actions' }, add, close)), holder),
    line.node);
  return {
    id: box.id,
    node,
    end: line.end,
    /** @param {Box} seen @param {Hold[]} holds */
    update(seen, holds) {
      say(heading, `Holds of ${seen.id}`);
      keep(holds);
      either(holder, holds.length > 0, rows, none);
    },
  };
}

/** @param {Hold} hold */
function holdRow(hold) {
  const state = badge(hold.status);
  const left = bar(`Time left of ${hold.userId}`);
  const end = until(hold.expiresAt);
  const cancel = action('Cancel', async () => {
    await post(`/v1/reservations/${hold.id}/cancel`);
    return `The box of ${hold.userId} is free again.`;
  }, { kind: 'quiet', describe: `Cancel the reservation of ${hold.userId}`, confirm: `Cancel the reservation of ${hold.userId}? The box goes to whoever is next.`, disabled: denied() });
  const node = el('tr', { 'data-hold': hold.id }, cell('Who', explainLink(`reservation:${hold.id}`, hold.userId)), cell('State', state), cell('Amount', money(hold.totalAmount, hold.currency)), cell('Until', end), cell('', el('div', { class: 'countdown' }, left.node)), cell('', cancel));
  /** @param {Hold} seen */
  const update = (seen) => {
    const paid = seen.paymentStatus === 'PAID';
    setBadge(state, paid ? 'PAID' : seen.status === 'OFFERED' ? 'OFFERED' : 'PENDING', paid ? 'paid' : seen.status === 'OFFERED' ? 'offered' : 'held');
    setTime(end, seen.expiresAt);
    const whole = Date.parse(seen.expiresAt) - Date.parse(seen.reservedAt);
    const rest = Math.max(0, Date.parse(seen.expiresAt) - now());
    left.set(rest, whole, paid ? 'quiet' : rest < 15_000 ? 'warn' : '');
  };
  return { node, update };
}

/** Who waits, as long as it is shown. @param {string} id */
function waitingList(id) {
  const { node: rows, body } = table('Waiting list', ['Who', 'Place', 'State'], 'compact');
  const none = empty('Nobody waits', 'When a box is sold out, people can wait in line. What is given back is offered to the first of them.');
  const holder = el('div', {}, none);
  const keep = keyed(body, (/** @type {Waiting} */ entry) => entry.id, (entry) => {
    const place = cell('Place');
    const state = badge(entry.status);
    const node = el('tr', {}, cell('Who', shortId(entry.userId)), place, cell('State', state));
    return { node, update: (/** @type {Waiting} */ seen) => { say(place, seen.status === 'WAITING' ? number(seen.position) : '–'); setBadge(state, seen.status); } };
  });
  const ask = async () => {
    if (document.hidden) return;
    try {
      /** @type {Waiting[]} */
      const items = (await get(`/v1/inventory/${encodeURIComponent(id)}/waitlist?limit=50`)).items;
      keep(items);
      either(holder, items.length > 0, rows, none);
      say(title, items.length > 0 ? `Waiting list: ${count(items.length, 'person', 'people')}` : 'Waiting list');
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) clearInterval(timer);
    }
  };
  const timer = setInterval(() => void ask(), 2000);
  const node = card('Waiting list', holder);
  const title = /** @type {HTMLElement} */ (node.querySelector('h2'));
  void ask();
  return { node, end: () => clearInterval(timer) };
}
