// @ts-check
// Rates over the last minutes, drawn by uPlot in the page's own colours.

import { el } from './dom.js';
import { rate } from './format.js';
import { live } from './live.js';

/** @typedef {{ name: string, label: string, tone?: 'accent' | 'quiet' }} Line */

/** @type {typeof import('../vendor/uPlot.d.ts')} */
const Plot = /** @type {any} */ (globalThis).uPlot;

const WINDOW_S = 180;
/** A chart that has just begun is not drawn as an empty one. */
const WINDOW_LEAST_S = 30;
/** A rate is over this many looks, so that a line is not a fence. */
const SMOOTH = 4;

/** @param {number} seconds */
function clockOf(seconds) {
  return new Date(seconds * 1000).toLocaleTimeString('en', { hour12: false });
}

/** How much of the past is shown. @param {number} last */
function shownSeconds(last) {
  const first = (live.history[0]?.at ?? 0) / 1000;
  return Math.min(WINDOW_S, Math.max(WINDOW_LEAST_S, last - first));
}

/** @param {string} name */
function colour(name) {
  const probe = el('span', { class: `colour-${name}` });
  document.body.append(probe);
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

/** @param {string} rgb @param {number} alpha */
function faded(rgb, alpha) {
  const parts = rgb.match(/[\d.]+/g)?.slice(0, 3) ?? ['0', '0', '0'];
  return `rgba(${parts.join(', ')}, ${alpha})`;
}

/** The times, and for each line how often a second. @param {Line[]} lines @returns {import('../vendor/uPlot.d.ts').AlignedData} */
function series(lines) {
  const samples = live.history;
  const times = samples.map((sample) => sample.at / 1000);
  const values = lines.map(({ name }) => samples.map((sample, nth) => {
    const before = samples[Math.max(0, nth - SMOOTH)];
    if (!before || before === sample) return null;
    const grown = (sample.totals[name] ?? 0) - (before.totals[name] ?? 0);
    return grown < 0 ? null : grown / ((sample.at - before.at) / 1000);
  }));
  return /** @type {any} */ ([times, ...values]);
}

/**
 * A chart that follows. What it shows is said in words beside it, for those who do not see it.
 * @param {Line[]} lines
 * @param {string} about
 */
export function chart(lines, about) {
  const holder = el('div', { class: 'chart', role: 'img', 'aria-label': about });
  /** @type {import('../vendor/uPlot.d.ts') | null} */
  let plot = null;

  function draw() {
    plot?.destroy();
    const [accent, quiet, grid, text] = ['accent', 'quiet', 'grid', 'dim'].map(colour);
    const font = `11px ${getComputedStyle(document.body).fontFamily}`;
    const axis = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    plot = new Plot(/** @type {any} */ ({
      width: Math.max(holder.clientWidth, 120),
      height: holder.clientHeight || 120,
      padding: [8, 0, 0, 0],
      cursor: { show: false },
      legend: { show: false },
      scales: {
        x: { time: true, range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ max) => [max - shownSeconds(max), max] },
        y: { range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ max) => [0, Math.max(max * 1.15, 1)] },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 22, space: 80, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(clockOf) },
        { ...axis, size: 38, space: 32, values: (/** @type {any} */ _, /** @type {number[]} */ ticks) => ticks.map(rate) },
      ],
      series: [{}, ...lines.map(({ label, tone }) => {
        const stroke = (tone === 'quiet' ? quiet : accent) ?? '#000';
        return {
          label, stroke, width: tone === 'quiet' ? 1.5 : 2, points: { show: false },
          fill: tone === 'quiet' ? undefined : faded(stroke, 0.12), spanGaps: false,
        };
      })],
    }), series(lines), holder);
  }

  const sized = new ResizeObserver(() => {
    if (!plot) draw();
    else plot.setSize({ width: Math.max(holder.clientWidth, 120), height: holder.clientHeight || 120 });
  });
  sized.observe(holder);
  const dark = matchMedia('(prefers-color-scheme: dark)');
  dark.addEventListener('change', draw);
  document.addEventListener('themechange', draw);
  return {
    node: holder,
    update() {
      plot?.setData(series(lines));
    },
    end() {
      sized.disconnect();
      dark.removeEventListener('change', draw);
      document.removeEventListener('themechange', draw);
      plot?.destroy();
      plot = null;
    },
  };
}

/** What the lines of a chart are. @param {Line[]} lines */
export function legend(lines) {
  return el('p', { class: 'legend' }, lines.map(({ label, tone }) => (
    el('span', {}, el('i', { class: `swatch ${tone ?? 'accent'}`, 'aria-hidden': 'true' }), label)
  )));
}
