// One line a test, what went wrong in full, and a plain sum.

export default async function* report(source) {
  const sum = { passed: 0, failed: 0 };
  const failed = [];
  for await (const { type, data } of source) {
    // A file is reported as a test of its own where it could not be run.
    if (type === 'test:pass' && data.details?.type !== 'suite') {
      sum.passed += 1;
      yield `ok      ${data.name} (${Math.round(data.details.duration_ms)} ms)\n`;
    } else if (type === 'test:fail') {
      sum.failed += 1;
      failed.push(data);
      yield `FAILED  ${data.name}\n`;
    } else if (type === 'test:stderr' || type === 'test:stdout') {
      yield data.message;
    }
  }
  for (const { name, file, details } of failed) yield `\n${name} (${file})\n${details.error.cause?.stack ?? details.error.stack ?? details.error}\n`;
  yield `\n${sum.passed} passed, ${sum.failed} failed\n`;
}
