// client.js as any page uses it, in a browser.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';

import { launch, open } from './browser.js';
import { Solely, until } from './solely.js';

let sandbox;
let server;
let page;
let browser;
before(async () => {
  [browser, sandbox] = await Promise.all([launch(), Solely.sandbox()]);
  server = await Solely.serve({ config: `[enrich.providers.wolt]\nenabled = true\nurl = "${sandbox.url}/finder"\n` });
  page = await open(browser, `${server.url}/docs`);
});
after(async () => {
  await browser?.close();
  await server?.remove();
  await sandbox?.remove();
});

test('a patch is merged deeply, changes neither side, and keeps what it does not name', async () => {
  const merged = await page.evaluate(async () => {
    const { merge } = await import('/client.js');
    const before = { placeId: 'a', rating: 4, providers: { other: { status: 'FOUND', url: 'u' }, wolt: { status: 'PENDING', url: null } } };
    const patch = { providers: { wolt: { status: 'FOUND', url: 'w', updatedAt: 't' } }, wolt: { status: 'FOUND', url: 'w' } };
    const after = merge(before, patch);
    const evil = merge({}, JSON.parse('{"__proto__":{"hurt":1},"list":[1]}'));
    return { before, after, hurt: ({}).hurt ?? evil.hurt, list: merge({ list: [1, 2] }, { list: [3] }).list };
  });
  assert.deepEqual(merged.after.providers, { other: { status: 'FOUND', url: 'u' }, wolt: { status: 'FOUND', url: 'w', updatedAt: 't' } });
  assert.equal(merged.after.rating, 4);
  assert.equal(merged.before.providers.wolt.status, 'PENDING');
  assert.equal(merged.hurt, undefined);
  assert.deepEqual(merged.list, [3]);
});

test('a link is read from providers, else from the older field', async () => {
  const links = await page.evaluate(async () => {
    const { linkOf } = await import('/client.js');
    const [newer, older] = [{ status: 'FOUND', url: 'n' }, { status: 'PENDING', url: null }];
    return [
      linkOf({ placeId: 'a', providers: { wolt: newer }, wolt: older }), linkOf({ placeId: 'a', wolt: older }),
      linkOf({ placeId: 'a', providers: { other: newer } }), linkOf({ placeId: 'a', providers: { other: newer } }, 'other'),
    ];
  });
  assert.deepEqual(links, [{ status: 'FOUND', url: 'n' }, { status: 'PENDING', url: null }, null, { status: 'FOUND', url: 'n' }]);
});

test('a search is followed to its end, and other providers are kept', async () => {
  const results = await page.evaluate(async () => {
    const { connect } = await import('/client.js');
    const places = ['Zohara Hummus', 'Levontin Grill'].map((name) => ({ placeId: name, name, providers: { own: { status: 'FOUND', url: 'o' } } }));
    const answer = await (await fetch('/v1/enrich', { method: 'POST', body: JSON.stringify({ cityText: 'Haifa', results: places }) })).json();
    return new Promise((resolve) => {
      const solely = connect();
      solely.follow(answer.requestId, answer.results, (known) => {
        if (known.every(({ providers }) => providers.wolt.status === 'FOUND')) {
          solely.close();
          resolve(known);
        }
      });
    });
  });
  for (const { providers } of results) assert.deepEqual(providers.own, { status: 'FOUND', url: 'o' });
});

test('two parts of a page that follow one search both hear of it, also the one that comes later', async () => {
  const heard = await page.evaluate(async () => {
    const { connect } = await import('/client.js');
    const solely = connect();
    const answer = await (await fetch('/v1/enrich', { method: 'POST', body: JSON.stringify({ cityText: 'Haifa', results: [{ placeId: 'both', name: 'Zohara Hummus' }] }) })).json();
    /** @returns {Promise<string>} */
    const found = () => new Promise((resolve) => {
      const end = solely.follow(answer.requestId, answer.results, ([{ providers }]) => { if (providers.wolt.status === 'FOUND') { end(); resolve('FOUND'); } });
    });
    const [first, second] = [found(), found()];
    const early = await Promise.all([first, second]);
    const late = await found();
    solely.close();
    return [...early, late];
  });
  assert.deepEqual(heard, ['FOUND', 'FOUND', 'FOUND']);
});

test('what docs/DASHBOARD.md shows of it works as it is written', async () => {
  const document = readFileSync(new URL('../../docs/DASHBOARD.md', import.meta.url), 'utf8');
  const [, shown] = document.match(/```js\n([^]*?)```/u) ?? [];
  assert.ok(shown?.includes('https://solely.example.org/client.js'), 'it shows where the module comes from');
  // Its own server's name, and the line that reads a link is for when there is one.
  const written = shown.replaceAll('https://solely.example.org', server.url);
  const [all, last] = written.match(/^linkOf\(.*$/mu) ?? [];
  assert.ok(all !== undefined && last === undefined, 'it ends by reading a link');
  const program = written.replace(all, `globalThis.read = (results) => ${all.replace(/;.*$/u, '')};`);
  // As a file of its own origin: the page's policy allows nothing else.
  await page.route('**/shown.js', (route) => route.fulfill({ contentType: 'text/javascript', body: program }));
  await page.evaluate(() => {
    globalThis.body = JSON.stringify({ cityText: 'Haifa', results: [{ placeId: 'shown', name: 'Zohara Hummus' }] });
    globalThis.shown = [];
    globalThis.show = (results) => globalThis.shown.push(results);
    return import(String('/shown.js'));
  });
  const read = () => page.evaluate(() => globalThis.shown.length > 0 && globalThis.read(globalThis.shown.at(-1)));
  const link = await until(async () => { const found = await read(); return found?.status === 'FOUND' && found; }, 'a link');
  assert.match(link.url, /^https:\/\/wolt\.com\//u);
});

test('it comes back less and less often, and at once when the server does; what it followed goes on', async () => {
  await sandbox.post('/_mood', { latencyMs: 800 });
  await page.evaluate(async () => {
    const { connect } = await import('/client.js');
    globalThis.seen = [];
    globalThis.solely = connect({ onStatus: (status) => globalThis.seen.push(status) });
    await new Promise((resolve) => { globalThis.solely.subscribe({ channel: 'search', requestId: 'r' }, (said) => said.type === 'sub_ack' && resolve(undefined)); });
    const answer = await (await fetch('/v1/enrich', { method: 'POST', body: JSON.stringify({ requestId: 'r', results: [{ placeId: 'late', name: 'Tamarin Noodle' }] }) })).json();
    globalThis.solely.follow('r', answer.results, (known) => { globalThis.known = known; });
  });
  await server.stop('SIGKILL');
  await until(() => page.evaluate(() => globalThis.seen.filter(({ state }) => state === 'waiting').length >= 4), 'four attempts');
  const waits = await page.evaluate(() => globalThis.seen.filter(({ state }) => state === 'waiting').map(({ retryInMs }) => retryInMs));
  assert.ok(waits[0] <= 250 && waits[3] >= 1_000 && waits.every((wait) => wait <= 10_000), `${waits}`);
  await server.start();
  await until(() => page.evaluate(() => globalThis.known?.[0].providers.wolt.status === 'FOUND'), 'it hears what it missed');
  await page.evaluate(() => globalThis.solely.close());
  assert.equal(await page.evaluate(() => globalThis.solely.status.state), 'closed');
});
