// What can be done from the dashboard, and what it does when its server goes away.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { launch, open, text } from './browser.js';
import { Solely, until } from './solely.js';

let sandbox;
let server;
let browser;
const mood = (wanted) => sandbox.post('/_mood', wanted);
before(async () => {
  [browser, sandbox] = await Promise.all([launch(), Solely.sandbox()]);
  const config = `
[enrich.providers.wolt]
enabled = true
url = "${sandbox.url}/finder"

[feed.sources.diamonds]
url = "${sandbox.url}/feed"
rate = ""

[products.plugins.tours]
url = "${sandbox.url}/products"
`;
  server = await Solely.serve({ config });
});
after(async () => {
  await browser?.close();
  await server?.remove();
  await sandbox?.remove();
});

test('a partition that failed is retried, and its dead letter redriven', async () => {
  await mood({ status: 400, badOffset: 60 });
  const page = await open(browser, `${server.url}/runs`);
  await page.locator('button:text("Start diamonds")').click();
  const failed = page.locator('.partition:has(.badge[data-state="failed"])');
  await failed.first().waitFor();
  await until(async () => (await server.get('/v1/runs')).items[0].status === 'failed', 'the run has failed');
  await mood({});
  const name = await failed.first().getAttribute('data-partition');
  const retried = page.locator(`[data-partition="${name}"]`);
  await retried.locator('button:text("Retry")').click();
  await retried.locator('.badge[data-state="completed"]').waitFor();

  const jobs = await open(browser, `${server.url}/jobs`);
  const letter = jobs.locator('#dead [data-job]').last();
  await letter.waitFor();
  const id = await letter.getAttribute('data-job');
  await letter.locator('button:text("Redrive")').click();
  await jobs.locator(`#dead [data-job="${id}"]`).waitFor({ state: 'detached' });
  assert.notEqual((await server.get(`/v1/jobs/${id}`)).state, 'dead');

  const resume = page.locator('button:text("Resume run")');
  if (await resume.isVisible()) await resume.click();
  await page.locator('.card > .box-top .badge[data-state="completed"]').waitFor();
  await text(page, '#main', /Current: 3,000 added/);
  for (const one of [page, jobs]) assert.deepEqual(one.faults, []);
  await Promise.all([page, jobs].map((one) => one.context().close()));
});

test('a queue is paused and resumed', async () => {
  const page = await open(browser, `${server.url}/jobs`);
  const queue = page.locator('[data-queue="work-items"]');
  await queue.locator('button:text("Pause")').click();
  await page.locator('dialog button:text("Pause")').click();
  await queue.locator('.badge[data-state="paused"]').waitFor();
  await until(async () => (await server.get('/v1/queues')).items.find(({ name }) => name === 'work-items').pausedUntil, 'it is paused');
  await queue.locator('button:text("Resume")').click();
  await queue.locator('.badge[data-state="paused"]').waitFor({ state: 'detached' });
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('what looks like a tag is text, everywhere', async () => {
  const evil = '<img src=x onerror=globalThis.hurt=1>';
  await server.post('/v1/leases', { keys: [evil], owner: evil, ttlMs: 60_000 });
  await server.post('/v1/merchants', { id: 'm', name: evil });
  await server.post('/v1/merchants/m/box-types', { id: 't', name: evil });
  const hour = 3_600_000;
  await server.post('/v1/inventory', {
    id: evil, boxTypeId: 't', quantity: 2, price: 100, currency: 'EUR', pickupStart: new Date().toISOString(), pickupEnd: new Date(Date.now() + hour).toISOString(),
  });
  await server.post('/v1/reservations', { userId: evil, boxInventoryId: evil });
  await server.post('/v1/enrich', { results: [{ placeId: evil, name: evil }] });
  const product = { productId: evil, productName: evil, options: [{ optionId: evil, optionName: evil }] };
  const kept = await server.post('/v1/products/cache', { appKey: 'tours', userId: 'ada', operation: 'searchProducts', products: [product] }, 'PUT');
  assert.ok(kept.status < 300, JSON.stringify(kept));
  const run = await server.post('/v1/runs', { source: 'diamonds', partitions: [{ partitionId: evil, minPrice: 0, maxPrice: 250_000 }] });
  assert.equal(run.status, 202, JSON.stringify(run));
  // What stands on these pages comes from the configuration alone; they are looked at all the same.
  const quiet = ['/', '/upstreams', '/alerts'];
  for (const path of ['/runs', '/products', ...quiet, '/leases', '/boxes', '/enrich', '/jobs', `/explain?key=${encodeURIComponent(`place:${evil}`)}`, `/explain?key=${encodeURIComponent(`inventory:${evil}`)}`]) {
    const page = await open(browser, server.url + path);
    if (path === '/products') await page.locator('button:text("Search")').click();
    if (!quiet.includes(path)) await page.locator('#main', { hasText: evil }).waitFor();
    await text(page, '.status', /Live/);
    assert.equal(await page.locator('img[src="x"]').count(), 0, path);
    assert.equal(await page.evaluate(() => globalThis.hurt), undefined, path);
    assert.deepEqual(page.faults, [], path);
    await page.context().close();
  }
});

test('after a restart the page connects again and hears what it missed', async () => {
  await mood({ latencyMs: 1_500 });
  const page = await open(browser, `${server.url}/enrich`);
  await text(page, '.status', /Live/);
  await page.locator('#ask-name').fill('Zohara Hummus');
  await page.locator('#ask-city').fill('Tel Aviv');
  await page.locator('button:text("Ask")').click();
  await page.locator('.lookup-result .badge[data-state="PENDING"]').waitFor();
  await server.stop('SIGKILL');
  await page.locator('.status:not([data-state="open"])').waitFor();
  await server.start();
  await page.locator('.lookup-result .badge[data-state="FOUND"]').waitFor();
  await page.locator('.status[data-state="open"]').waitFor();
  const others = page.faults.filter((fault) => !/WebSocket|ERR_CONNECTION|Failed to load resource/.test(fault));
  assert.deepEqual(others, []);
  await page.context().close();
  await mood({});
});

test('ten screens are told by one look', async () => {
  const page = await open(browser, `${server.url}/docs`);
  const heard = await page.evaluate(async () => {
    const screens = await Promise.all(Array.from({ length: 10 }, () => new Promise((resolve) => {
      const socket = new WebSocket(`ws://${location.host}/v1/ws`);
      const screen = { socket, looks: [] };
      socket.onopen = () => socket.send(JSON.stringify({ v: 1, type: 'subscribe', channel: 'dashboard', topics: [] }));
      socket.onmessage = ({ data }) => {
        const said = JSON.parse(data);
        if (said.type === 'sub_ack') resolve(screen);
        if (said.topic === 'overview') screen.looks.push(said.data.at);
        screen.heard?.();
      };
    })));
    // From when all of them listen.
    for (const screen of screens) screen.looks.length = 0;
    return Promise.all(screens.map((screen) => new Promise((resolve) => {
      screen.heard = () => {
        if (screen.looks.length < 3) return;
        screen.socket.close();
        resolve(screen.looks.slice(0, 3));
      };
    })));
  });
  // One may have been told of a look just before, and another just after.
  const looks = new Set(heard.flat());
  assert.ok(looks.size <= 4, `${looks.size} looks for ${heard.flat().length} messages`);
  assert.equal(heard.flat().length, 30);
  await page.context().close();
});
