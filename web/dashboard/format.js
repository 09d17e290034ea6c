// @ts-check
// Numbers, money and times as people read them.

const NUMBER = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const COMPACT = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });
const EXACT = new Intl.DateTimeFormat('en', { dateStyle: 'medium', timeStyle: 'medium' });

/** @param {number} value */
export function number(value) {
  return Math.abs(value) >= 1_000_000 ? COMPACT.format(value) : NUMBER.format(value);
}

/** A rate: more digits the smaller it is. @param {number} perSecond */
export function rate(perSecond) {
  if (!Number.isFinite(perSecond) || perSecond < 0.005) return '0';
  if (perSecond < 10) return perSecond.toFixed(1);
  return number(perSecond);
}

/** @param {number} part @param {number} whole */
export function share(part, whole) {
  if (whole <= 0) return '–';
  const percent = (part / whole) * 100;
  return `${percent > 99 && percent < 100 ? percent.toFixed(1) : Math.round(percent)} %`;
}

/** @param {number} minor @param {string} currency */
export function money(minor, currency) {
  try {
    return new Intl.NumberFormat('en', { style: 'currency', currency }).format(minor / 100);
  } catch {
    return `${(minor / 100).toFixed(2)} ${currency}`;
  }
}

/** A stretch of time, in its two largest units. @param {number} ms */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 60) return `${seconds} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${String(seconds % 60).padStart(2, '0')} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, '0')} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A short time, such as that of a call. @param {number} seconds */
export function took(seconds) {
  if (!Number.isFinite(seconds)) return '–';
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds.toFixed(1)} s`;
}

/** @param {string} iso */
export function exact(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso : `${EXACT.format(at)} (${iso})`;
}

/** The time of day, to the second. @param {string} iso */
export function clock(iso) {
  const at = new Date(iso);
  return Number.isNaN(at.getTime()) ? iso : at.toLocaleTimeString('en', { hour12: false });
}

/** The beginning of an id, enough to tell it from others on a screen. @param {string} id */
export function shortId(id) {
  return /^[0-9a-f]{8}-[0-9a-f-]{27}$/i.test(id) ? `${id.slice(0, 8)}…${id.slice(-4)}` : id;
}

/** @param {number} count @param {string} one @param {string} [many] */
export function count(count, one, many = `${one}s`) {
  return `${number(count)} ${count === 1 ? one : many}`;
}
