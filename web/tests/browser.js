// A real Chromium, and pages that remember what they should not have done.

import { chromium } from 'playwright-core';

const FLAGS = [
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync',
];

export function launch() {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: FLAGS });
}

/** A page of its own; `faults` has what went wrong in it: errors, and requests to anyone but the server. */
export async function open(browser, url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, colorScheme: 'light', ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(30_000);
  page.faults = [];
  page.weight = 0;
  const { origin } = new URL(url);
  page.on('console', (message) => {
    if (message.type() === 'error') page.faults.push(`console: ${message.text()} at ${message.location().url}`);
  });
  page.on('pageerror', (error) => page.faults.push(`error: ${error.message}`));
  page.on('request', (request) => {
    if (new URL(request.url()).origin !== origin) page.faults.push(`external: ${request.url()}`);
  });
  page.on('response', (response) => {
    const files = /\/(dashboard|vendor|demo)\/|\/client\.js$/.test(response.url()) || response.request().resourceType() === 'document';
    if (files) void response.body().then((body) => { page.weight += body.length; }, () => {});
  });
  await page.goto(url);
  return page;
}

/** The words of a place in a page, once they are as wanted. */
export async function text(page, selector, wanted) {
  await page.waitForFunction(([place, pattern]) => {
    const found = document.querySelector(place);
    return found && new RegExp(pattern).test(found.textContent ?? '');
  }, [selector, wanted.source]);
}
