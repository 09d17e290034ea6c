// The demo's own pages: badges that turn, and one sale in two windows.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { launch, open, text } from './browser.js';
import { Solely, until } from './solely.js';

let demo;
let browser;
before(async () => {
  browser = await launch();
  demo = await Solely.demo();
});
after(async () => {
  await browser?.close();
  await demo?.remove();
});

test('badges turn from pending to found as patches arrive', async () => {
  const page = await open(browser, `${demo.url}/demo/restaurants`);
  await page.locator('#what').fill('Shakshuka');
  await page.locator('button:text("Search")').click();
  await page.locator('.place .badge[data-state="PENDING"]').first().waitFor();
  await page.locator('.place .badge[data-state="FOUND"]').first().waitFor();
  await text(page, '#summary', /all links known/);
  const found = await page.locator('.place .badge[data-state="FOUND"]').count();
  assert.ok(found >= 5, `${found} were found`);
  assert.equal(await page.locator('[data-place^="nowhere"] .badge').getAttribute('data-state'), 'NOT_FOUND');
  assert.match(await page.locator('.place a').first().getAttribute('href') ?? '', /^https:\/\/wolt\.com\//);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('two windows see one sale: held, paid, collected', async () => {
  const [ada, bob] = await Promise.all(['ada', 'bob'].map((user) => open(browser, `${demo.url}/demo/shop?user=window-${user}`)));
  const cake = '[data-box="cake-evening"]';
  const left = (page, count) => page.locator(`${cake} [data-left="${count}"]`).waitFor();
  await Promise.all([left(ada, 3), left(bob, 3)]);
  await ada.locator(`${cake} button:text("Hold one")`).click();
  await Promise.all([left(ada, 2), left(bob, 2)]);
  await ada.locator('.mine[data-state="HELD"] time').waitFor();
  await ada.locator('.mine button:text("Pay")').click();
  await ada.locator('.mine[data-state="PAID"]').waitFor();
  await ada.locator('.mine button:text("Collect")').click();
  await ada.locator('.mine').waitFor({ state: 'detached' });
  await left(bob, 2);
  for (const page of [ada, bob]) assert.deepEqual(page.faults, []);
  await Promise.all([ada, bob].map((page) => page.context().close()));
});

test('whoever finds it sold out waits in line, is offered what is given back, and takes it', async () => {
  const cake = '[data-box="cake-evening"]';
  for (const user of ['first', 'second']) {
    const { status, body } = await demo.post('/v1/reservations', { userId: `line-${user}`, boxInventoryId: 'cake-evening' });
    assert.equal(status, 201, JSON.stringify(body));
  }
  const page = await open(browser, `${demo.url}/demo/shop?user=line-third`);
  await page.locator(`${cake} button:text("Wait in line")`).click();
  await text(page, cake, /You wait here as number 1/);
  const { items } = await demo.get('/v1/reservations?userId=line-first&status=ACTIVE');
  await demo.post(`/v1/reservations/${items[0].id}/cancel`);
  await page.locator('.mine[data-state="OFFERED"]').waitFor();
  await page.locator('.mine button:text("Accept")').click();
  await page.locator('.mine[data-state="HELD"]').waitFor();
  await until(async () => (await demo.get('/v1/reservations?userId=line-third&status=ACTIVE')).items.length === 1, 'it is held');
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('a worker dies with its work in hand, and the work is done all the same', async () => {
  const rescued = async () => {
    const metrics = await (await fetch(`${demo.url}/metrics`)).text();
    return Number(/^solely_jobs_rescued_total (\d+)/m.exec(metrics)?.[1]) > 0;
  };
  await until(rescued, 'a job is taken back from a worker that is gone', 60_000);
});

test('only a demo has its pages', async () => {
  const server = await Solely.serve();
  for (const path of ['/demo/shop', '/demo/restaurants', '/demo/shop.js']) {
    assert.equal((await fetch(server.url + path)).status, 404, path);
  }
  assert.equal((await server.get('/v1/session')).demo, false);
  await server.remove();
});
