// @ts-check
// Requests, with the browser's own rights.

/**
 * What a page knows of who looks at it.
 * @typedef {{ auth: 'none' | 'keys', demo: boolean, version: string, scopes: string[] | null, csrfToken: string | null }} Session
 */

/** An error that a person is told: what happened, and what to do. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message */
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

/** @type {Session} */
export let session = { auth: 'none', demo: false, version: '', scopes: null, csrfToken: null };
/** @type {() => void} */
let loggedOut = () => {};

/** What happens when a request finds that the login has ended. @param {() => void} then */
export function onLoggedOut(then) {
  loggedOut = then;
}

export async function loadSession() {
  session = await ask('GET', '/v1/session');
  return session;
}

/** @param {string} key */
export async function login(key) {
  session = await ask('POST', '/v1/login', {}, { Authorization: `Bearer ${key}` });
  return session;
}

export async function logout() {
  await ask('POST', '/v1/logout', {});
  return loadSession();
}

/** Whether there is something to see. */
export function isLoggedIn() {
  return session.auth === 'none' || session.scopes !== null;
}

/** @param {string} needed such as `admin:write` */
export function may(needed) {
  if (session.auth === 'none') return true;
  const area = needed.split(':')[0];
  const scopes = session.scopes ?? [];
  return scopes.includes(needed) || (needed.endsWith(':read') && scopes.includes(`${area}:write`));
}

/** @param {string} path @returns {Promise<any>} */
export function get(path) {
  return ask('GET', path);
}

/** @param {string} path @param {object} [body] @returns {Promise<any>} */
export function post(path, body = {}) {
  return ask('POST', path, body);
}

/** @param {string} path @param {object} body @returns {Promise<any>} */
export function patch(path, body) {
  return ask('PATCH', path, body);
}

/** @param {string} path @returns {Promise<any>} */
export function remove(path) {
  return ask('DELETE', path);
}

/**
 * @param {string} method
 * @param {string} path
 * @param {object} [body]
 * @param {Record<string, string>} [more]
 * @returns {Promise<any>}
 */
async function ask(method, path, body, more = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: 'application/json', ...more };
  if (body) headers['Content-Type'] = 'application/json';
  if (method !== 'GET' && session.csrfToken) headers['X-CSRF-Token'] = session.csrfToken;
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), credentials: 'same-origin' });
  } catch {
    throw new ApiError(0, 'UNREACHABLE', 'The server cannot be reached. Is it running?');
  }
  const text = await answer.text();
  if (answer.ok) return text ? JSON.parse(text) : null;
  throw refused(answer.status, text, path);
}

/** @param {number} status @param {string} text @param {string} path */
function refused(status, text, path) {
  let code = 'ERROR';
  let message = `The server answered ${status}.`;
  try {
    const said = JSON.parse(text);
    code = said.error ?? code;
    message = said.message ?? message;
  } catch {
    // Whatever stands in between answered, and not in our words.
  }
  if (status === 401 && path !== '/v1/login') loggedOut();
  return new ApiError(status, code, message);
}
