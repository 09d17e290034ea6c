// Every page of the dashboard, with `solely demo` behind it.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { after, before, test } from 'node:test';

import { launch, open, text } from './browser.js';
import { Solely, until } from './solely.js';

const AXE = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');

/** Each page, and what shows that it lives. */
const PAGES = {
  '/': '.hero-number:text-matches("[0-9]")',
  '/enrich': '.card table tbody tr',
  '/products': '.card table tbody tr',
  '/boxes': '[data-box]',
  '/runs': '[data-run]',
  '/jobs': '[data-queue]',
  '/leases': 'tbody tr',
  '/upstreams': '[data-upstream]',
  '/alerts': '.alert',
  '/explain': '.card li a',
};

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

test('within five seconds there is something to see on every page', async () => {
  const there = {
    runs: async () => (await demo.get('/v1/runs')).items.length > 0,
    boxes: async () => (await demo.get('/v1/inventory')).items.length >= 3,
    holds: async () => (await demo.get('/v1/reservations?status=ACTIVE')).items.length > 0,
    places: async () => (await demo.get('/v1/jobs?queue=enrich:wolt')).items.length > 0,
    leases: async () => (await demo.get('/v1/leases')).items.length > 0,
    plugins: async () => (await demo.get('/v1/upstreams')).items.filter(({ kind, calls }) => kind === 'plugin' && calls > 0).length === 2,
    alerts: async () => (await demo.get('/v1/alerts')).items.length > 0,
  };
  await Promise.all(Object.entries(there).map(([what, look]) => until(look, what, demo.startedAt + 5_000 - Date.now())));
});

for (const [path, lives] of Object.entries(PAGES)) {
  test(`${path} lives, without an error, within its own server and 300 KiB`, async () => {
    const page = await open(browser, demo.url + path);
    await page.locator(lives).first().waitFor();
    await text(page, '.status', /Live/);
    assert.deepEqual(page.faults, []);
    assert.ok(page.weight > 20_000 && page.weight <= 300 * 1024, `${page.weight} bytes`);
    await page.context().close();
  });
}

test('nothing else may be loaded, run or framed', async () => {
  for (const path of ['/', '/runs', '/dashboard/main.js', '/vendor/uPlot.iife.min.js', '/client.js', '/demo/shop']) {
    const answer = await fetch(demo.url + path);
    assert.equal(answer.status, 200, path);
    const policy = answer.headers.get('content-security-policy') ?? '';
    for (const part of ["default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'", "require-trusted-types-for 'script'"]) {
      assert.ok(policy.includes(part), `${path}: ${policy}`);
    }
    assert.ok(!policy.includes('unsafe'), policy);
    assert.equal(answer.headers.get('x-content-type-options'), 'nosniff');
    const again = await fetch(demo.url + path, { headers: { 'If-None-Match': answer.headers.get('etag') ?? '' } });
    assert.equal(again.status, 304, path);
  }
  for (const path of ['/dashboard/..%2fclient.js', '/dashboard/.hidden', '/dashboard/nothing.js', '/vendor/%2e%2e%2fclient.js']) {
    assert.equal((await fetch(demo.url + path)).status, 404, path);
  }
});

for (const [scheme, width] of [['light', 1280], ['dark', 1280], ['light', 375], ['dark', 375]]) {
  test(`everyone can use every page, ${scheme}, ${width} wide`, async () => {
    const page = await open(browser, demo.url, { colorScheme: scheme, viewport: { width, height: 800 }, bypassCSP: true, reducedMotion: 'reduce' });
    for (const [path, lives] of [...Object.entries(PAGES), ['/explain?key=inventory:sale-0001', '.timeline li'], ['/demo/restaurants', '.place'], ['/demo/shop', '.offer']]) {
      await page.goto(demo.url + path);
      await page.locator(lives).first().waitFor();
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
      assert.ok(wide <= 0, `${path} is ${wide} px too wide`);
      await page.evaluate(AXE);
      const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
      const grave = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
      assert.deepEqual(grave.map(({ id, nodes }) => `${path}: ${id} ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).slice(0, 3).join(' | ')}`), []);
    }
    await page.context().close();
  });
}

test('a hand on the keyboard gets everywhere', async () => {
  const page = await open(browser, demo.url);
  await page.locator('.hero-number').waitFor();
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement?.textContent), 'Skip to the content');
  await page.keyboard.press('Enter');
  await page.keyboard.press('/');
  assert.equal(await page.evaluate(() => document.activeElement?.id), 'search');
  await page.keyboard.type('inventory:bread-evening');
  await page.keyboard.press('Enter');
  await page.locator('[data-subject="inventory:bread-evening"] .timeline li').first().waitFor();
  assert.equal(await page.evaluate(() => document.activeElement?.tagName), 'H1');
  await page.locator('nav a[href="/jobs"]').focus();
  await page.keyboard.press('Enter');
  await page.locator('[data-queue]').first().waitFor();
  assert.equal(new URL(page.url()).pathname, '/jobs');
  const outlined = await page.evaluate(() => {
    document.querySelector('.theme')?.focus();
    return getComputedStyle(document.querySelector('.theme')).outlineStyle;
  });
  assert.notEqual(outlined, 'none', 'the focus is seen');
  await page.goBack();
  await page.locator('[data-subject="inventory:bread-evening"]').waitFor();
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('light or dark is remembered', async () => {
  const page = await open(browser, demo.url);
  await page.locator('.theme').click();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  await page.reload();
  await page.locator('.theme').waitFor();
  assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
  await page.context().close();
});

test('a menu on a telephone opens, leads and closes', async () => {
  const page = await open(browser, demo.url, { viewport: { width: 375, height: 700 } });
  await page.locator('#menu summary').click();
  await page.locator('nav a[href="/leases"]').click();
  await page.locator('tbody tr').first().waitFor();
  assert.equal(await page.locator('#menu').getAttribute('open'), null);
  assert.deepEqual(page.faults, []);
  await page.context().close();
});

test('told to stop, the demo ends well and leaves nothing', async () => {
  const other = await Solely.demo();
  await until(async () => (await other.get('/v1/reservations')).items.length > 0, 'the sale has begun');
  const began = Date.now();
  const { code } = await other.stop('SIGINT');
  assert.equal(code, 0, other.said);
  assert.ok(Date.now() - began < 10_000);
  assert.deepEqual(other.left(), []);
  await other.remove();
});
