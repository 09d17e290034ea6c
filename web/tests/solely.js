// Real processes for the tests: started on free ports in folders of their own, stopped by their ids.

import { spawn, spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const BINARY = process.env.SOLELY_BIN ?? fileURLToPath(new URL('../../target/debug/solely', import.meta.url));
const READY_MS = 30_000;

/** A port that nobody has, below those that the system gives out by itself. */
export async function freePort() {
  for (;;) {
    const port = 20_000 + Math.floor(Math.random() * 12_000);
    const free = await new Promise((resolve) => {
      const server = createServer().once('error', () => resolve(false)).listen(port, '127.0.0.1', () => server.close(() => resolve(true)));
    });
    if (free) return port;
  }
}

/** Awaits a condition, looking again and again; what it found. */
export async function until(condition, what, withinMs = READY_MS) {
  const deadline = Date.now() + withinMs;
  for (;;) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > deadline) throw new Error(`not within ${withinMs} ms: ${what}`);
    await new Promise((resolve) => { setTimeout(resolve, 25); });
  }
}

function environment(more) {
  const { DATABASE_URL: _, REDIS_URL: __, ...rest } = process.env;
  return { ...rest, ...more };
}

export class Solely {
  constructor(args, { config = '', env = {}, folder } = {}) {
    this.folder = folder ?? mkdtempSync(join(tmpdir(), 'solely-web-'));
    if (config) writeFileSync(join(this.folder, 'solely.toml'), config);
    this.args = args;
    this.env = env;
    this.said = '';
    this.child = null;
  }

  static async demo() {
    const port = await freePort();
    const solely = new Solely(['demo', '--listen', `127.0.0.1:${port}`]);
    return solely.start(`http://127.0.0.1:${port}`, '/readyz');
  }

  static async serve(options) {
    const port = await freePort();
    const solely = new Solely(['serve', '--listen', `127.0.0.1:${port}`], options);
    return solely.start(`http://127.0.0.1:${port}`, '/readyz');
  }

  static async sandbox() {
    const port = await freePort();
    const solely = new Solely(['sandbox', '--listen', `127.0.0.1:${port}`, '--records', '3000']);
    return solely.start(`http://127.0.0.1:${port}`, '/_calls');
  }

  async start(url = this.url, ready = '/readyz') {
    this.url = url;
    this.startedAt = Date.now();
    this.child = spawn(BINARY, this.args, { cwd: this.folder, env: environment({ TMPDIR: this.folder, ...this.env }), stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.child.stdout, this.child.stderr]) stream.on('data', (data) => { this.said = (this.said + data).slice(-20_000); });
    this.ended = new Promise((resolve) => { this.child.on('exit', (code, signal) => resolve({ code, signal })); });
    await until(() => fetch(url + ready).then((answer) => answer.ok, () => false), `${this.args[0]} answers: ${this.said}`);
    return this;
  }

  /** Ends the process; how it ended. */
  async stop(signal = 'SIGTERM') {
    this.child.kill(signal);
    return this.ended;
  }

  /** What it has left behind. */
  left() {
    return readdirSync(this.folder);
  }

  /** Ends it and removes its folder. */
  async remove() {
    await this.stop('SIGKILL');
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Runs another command on its folder. */
  run(...args) {
    const done = spawnSync(BINARY, args, { cwd: this.folder, env: environment(this.env), encoding: 'utf8' });
    if (done.status !== 0) throw new Error(`${args.join(' ')}: ${done.stderr}`);
    return done.stdout.trim();
  }

  async get(path) {
    const answer = await fetch(this.url + path);
    return answer.json();
  }

  async post(path, body = {}, method = 'POST') {
    const answer = await fetch(this.url + path, { method, body: JSON.stringify(body), headers: { 'Content-Type': 'application/json' } });
    return { status: answer.status, body: await answer.json().catch(() => null) };
  }
}
