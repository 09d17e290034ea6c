// Where callers are known by keys: a browser logs in, acts with a token, and is out when its key is revoked.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { launch, open, text } from './browser.js';
import { Solely, until } from './solely.js';

let server;
let browser;
before(async () => {
  browser = await launch();
  server = await Solely.serve({ env: { SOLELY__AUTH__MODE: 'keys' } });
});
after(async () => {
  await browser?.close();
  await server?.remove();
});

const newKey = (name, ...scopes) => server.run('keys', 'create', '--name', name, ...scopes.flatMap((scope) => ['--scope', scope]));

async function logIn(page, key) {
  await page.locator('#key').fill(key);
  await page.locator('button:text("Log in")').click();
}

test('a key opens the dashboard, and its cookie is no script\'s', async () => {
  const page = await open(browser, server.url);
  await logIn(page, 'solely_aaaaaaaaaaaaaaaa_nonsense');
  await page.locator('.problem').waitFor();
  await logIn(page, newKey('reader', 'feed'));
  await text(page, '.problem', /admin:read/);
  await logIn(page, newKey('admin', 'admin', 'feed', 'reserve', 'enrich', 'products'));
  await text(page, '.status', /Live/);
  assert.equal(await page.evaluate(() => document.cookie), '');
  const [cookie] = await page.context().cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite], [true, 'Strict']);
  await page.reload();
  await text(page, '.status', /Live/);

  // By cookie alone nothing is changed; with its token it is.
  const pause = (headers) => page.evaluate(async (more) => {
    const answer = await fetch('/v1/queues/notifications/pause', { method: 'POST', body: '{}', headers: more });
    return [answer.status, (await answer.json()).error];
  }, headers);
  assert.deepEqual(await pause({}), [403, 'FORBIDDEN']);
  assert.deepEqual(await pause({ 'X-CSRF-Token': 'wrong' }), [403, 'FORBIDDEN']);
  const { csrfToken } = await page.evaluate(async () => (await fetch('/v1/session')).json());
  assert.equal((await pause({ 'X-CSRF-Token': csrfToken }))[0], 200);
  await page.goto(`${server.url}/jobs`);
  await page.locator('[data-queue="notifications"] button:text("Resume")').click();
  await page.locator('[data-queue="notifications"] .badge[data-state="paused"]').waitFor({ state: 'detached' });

  await page.locator('button:text("Log out")').click();
  await page.locator('#key').waitFor();
  assert.deepEqual(await page.context().cookies(), []);
  assert.equal(await page.evaluate(async () => (await fetch('/v1/queues')).status), 401);
  await page.context().close();
});

test('a revoked key is out within five seconds, and hears nothing more', async () => {
  const key = newKey('leaves', 'admin');
  const page = await open(browser, server.url);
  await logIn(page, key);
  await text(page, '.status', /Live/);
  server.run('keys', 'revoke', key.split('_')[1]);
  const revoked = Date.now();
  await page.locator('#key').waitFor();
  assert.ok(Date.now() - revoked < 5_500, `${Date.now() - revoked} ms`);
  await until(async () => (await page.evaluate(async () => (await fetch('/v1/queues')).status)) === 401, 'the cookie is nobody\'s', 5_000);
  await page.context().close();
});

test('a page of another origin cannot use the login', async () => {
  const key = newKey('victim', 'admin');
  const headers = { Cookie: `solely_session=${key}` };
  const status = async (path, more = {}) => (await fetch(server.url + path, { headers: { ...headers, ...more } })).status;
  assert.equal(await status('/v1/queues'), 200);
  assert.equal(await status('/v1/queues', { Origin: 'http://127.0.0.1:1' }), 403);
});

test('who may only look is shown no door', async () => {
  const page = await open(browser, `${server.url}/runs`);
  await logIn(page, newKey('looker', 'admin:read'));
  await text(page, '.status', /Live/);
  await text(page, '#main', /This needs the scope feed:read/);
  await page.goto(`${server.url}/jobs`);
  await page.locator('#main h1').waitFor();
  assert.deepEqual(page.faults.filter((fault) => !fault.includes('401')), []);
  await page.context().close();
});
