// Opens pages of `qkv see --html` in Chromium and compares what they show with the files. Usage, by scripts/test-browser:
//   node page_test.mjs QKV SAMPLES [SCREENSHOTS]     prints "N passed, M failed" last
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { cpus, loadavg, tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import axe from 'axe-core';
import { chromium } from 'playwright-core';

const [qkv, samples, screenshots] = process.argv.slice(2);
const folder = mkdtempSync(join(tmpdir(), 'qkv-page-'));
const here = dirname(fileURLToPath(import.meta.url));
execFileSync('python3', [join(here, 'make_files.py'), folder], { stdio: 'inherit' });
const expected = JSON.parse(readFileSync(join(folder, 'expected.json')));

function make(name, ...options) {
  const page = join(folder, `${name}.html`);
  execFileSync(qkv, ['see', ...options, '--html', page], { stdio: 'pipe', cwd: folder });
  return pathToFileURL(page).href;
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox'] });
let passed = 0, failed = 0;

// ---- what a test is made of ----

/// One page, watched: requests that leave it, errors, and what its policy refused all count as failures.
async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  const page = await context.newPage(), wrong = [];
  page.on('request', r => { if (!r.url().startsWith('data:') && r.url().split('#')[0] !== address.split('#')[0]) wrong.push(`request ${r.url()}`); });
  page.on('pageerror', e => wrong.push(`error ${e.message}`));
  page.on('console', m => { if (m.type() === 'error') wrong.push(`console ${m.text()}`); });
  page.wrong = wrong;
  await page.goto(address);
  await painted(page);
  return page;
}
async function painted(page) {
  await page.waitForFunction(() => performance.getEntriesByName('qkv-map-painted').length > 0 && performance.getEntriesByName('qkv-heads-painted').length > 0);
}

async function test(name, run) {
  let page = null;
  const began = Date.now();
  try {
    page = await run();
    if (page) expect(page.wrong.length === 0, page.wrong.join('; '));
    ++passed;
    console.log(`ok     ${name} (${Date.now() - began} ms)`);
  } catch (e) {
    ++failed;
    console.log(`FAILED ${name}\n       ${e.stack.split('\n').slice(0, 4).join('\n       ')}`);
  }
  for (const context of browser.contexts()) await context.close();
}
function expect(good, what) { if (!good) throw new Error(what); }
const equal = (got, want, what) => expect(JSON.stringify(got) === JSON.stringify(want), `${what}: got ${JSON.stringify(got)}, expected ${JSON.stringify(want)}`);

/// "not (4) → bad (5): 0.103 · rank 2 of 13 · lift 1.3" in parts.
async function readout(page) {
  const text = await page.locator('#readout').textContent();
  const m = /^(?:Pinned: )?(?:.*\()?(\d+)\)? → (?:.*\()?(\d+)\)?: (\S.*?)(?: · rank (\d+) of (\d+) · lift (.*))?$/su.exec(text);
  expect(m, `readout '${text}'`);
  return { query: +m[1], key: +m[2], weight: m[3], rank: +m[4], of: +m[5], lift: m[6], text };
}
const settled = page => page.evaluate(() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done))));

/// Pins a cell by address and reads what the page says of it.
async function at(page, query, key) {
  await page.evaluate(([q, k]) => { const a = new URLSearchParams(location.hash.slice(1)); a.set('pin', `${q},${k}`); location.hash = a; }, [query, key]);
  await page.waitForFunction(([q, k]) => location.hash.includes(`pin=${q},${k}`) || location.hash.includes(`pin=${q}%2C${k}`), [query, key]);
  await settled(page);
  return readout(page);
}
/// Three digits are shown of what is rounded to float16: 1 %. Of 8-bit tiles two: 8 %.
function expectWeight(shown, weight, what, relative = .01, absolute = 1e-7) {
  const value = shown === 'under 0.000001' ? 5e-7 : Number(shown);
  expect(Math.abs(value - weight) <= Math.max(absolute, relative * weight), `${what}: shown ${shown}, in the file ${weight}`);
}
async function expectCells(page, name, ...tolerance) {
  for (const [i, j, w] of expected[name].cells) {
    const said = await at(page, i, j);
    equal([said.query, said.key], [i, j], 'the pinned cell');
    expectWeight(said.weight, w, `${name} (${i}, ${j})`, ...tolerance);
  }
}
/// Indices of the keys in the table of the pinned row.
async function tableKeys(page) {
  const names = await page.locator('#row-body th').allTextContents();
  return names.map(text => +/(\d+)\)?$/.exec(text)[1]);
}

/// Times are limits on a machine that does nothing else; where more runs than there are processors, they stretch alike.
const stretch = () => Math.max(1, loadavg()[0] / cpus().length);

// ---- tests ----

const sample = join(samples, 'minilm-not-bad.npz');
const sampleWeights = JSON.parse(execFileSync('python3', ['-c', 'import json, sys, numpy\nz = numpy.load(sys.argv[1])\nprint(json.dumps([z[f"layer{n}.weights"][0].tolist() for n in range(6)]))', sample], { maxBuffer: 1 << 26 }));
const samplePage = make('sample', sample);
const longPage = make('long', 'long.npz', '--causal');

await test('the sample draws, and hovering shows the numbers of the file', async () => {
  const page = await open(`${samplePage}#layer=4&head=7`);
  equal(await page.title(), 'Layer 4, head 7 · minilm-not-bad.npz', 'title');
  equal(await page.locator('#axis-key').textContent(), 'Key', 'axis');
  equal(await page.locator('#axis-query').textContent(), 'Query', 'axis');
  const box = await page.locator('#canvas').boundingBox(), hits = new Set();
  for (let n = 0; n < 25; ++n) {
    const x = box.x + box.width * (.3 + .4 * (n % 5) / 5), y = box.y + box.height * (.35 + .5 * Math.floor(n / 5) / 5);
    await page.mouse.move(x, y);
    await settled(page);
    if (await page.locator('#tip').isHidden()) continue;
    const said = await readout(page), w = sampleWeights[4][7][said.query][said.key];
    expectWeight(said.weight, w, `(${said.query}, ${said.key})`);
    equal(said.rank, 1 + sampleWeights[4][7][said.query].filter(other => other > w * 1.001).length, 'rank');
    expect((await page.locator('#tip').textContent()).includes(said.weight), 'the value stands at the pointer');
    hits.add(`${said.query},${said.key}`);
  }
  expect(hits.size > 8, `only ${hits.size} cells were hit`);
  return page;
});

await test('colours are cividis at the place of the weight', async () => {
  const page = await open(`${samplePage}#layer=2&head=1`);
  const bar = await page.evaluate(() => { const c = document.querySelector('#legend canvas'); return [0, 64, 128, 192, 255].map(x => [...c.getContext('2d').getImageData(x, 0, 1, 1).data.slice(0, 3)]); });
  equal(bar, [[0, 34, 78], [67, 78, 108], [125, 124, 120], [188, 174, 108], [254, 232, 56]], 'cividis at 0, 64, 128, 192, 255');
  const table = await page.evaluate(() => { const c = document.querySelector('#legend canvas'); return [...c.getContext('2d').getImageData(0, 0, 256, 1).data]; });
  const box = await page.locator('#canvas').boundingBox(), weights = sampleWeights[2][1], most = Math.max(...weights.flat());
  const points = [0, 1, 2, 3, 4, 5].map(n => [Math.round(box.width * (.35 + .06 * n)), Math.round(box.height * (.4 + .07 * n))]);
  const around = await page.evaluate(places => places.map(([x, y]) => [...document.getElementById('canvas').getContext('2d').getImageData(x - 6, y - 6, 13, 13).data]), points);
  for (const [n, [x, y]] of points.entries()) {
    await page.mouse.move(box.x + x, box.y + y);
    await settled(page);
    const said = await readout(page), entry = Math.round(weights[said.query][said.key] / most * 255);
    const found = around[n].some((_, at) => at % 4 === 0 &&  // a number may stand in the middle of the cell
      [-1, 0, 1].some(d => [0, 1, 2].every(c => around[n][at + c] === table[4 * Math.max(0, Math.min(255, entry + d)) + c])));
    expect(found, `no pixel of the colour ${table.slice(4 * entry, 4 * entry + 3)} at (${said.query}, ${said.key})`);
  }
  return page;
});

await test('a click pins, the table has the strongest keys, Escape unpins', async () => {
  const page = await open(`${samplePage}#layer=4&head=7`);
  const box = await page.locator('#canvas').boundingBox();
  await page.mouse.click(box.x + box.width * .5, box.y + box.height * .6);
  await settled(page);
  const said = await readout(page);
  expect((await page.evaluate(() => location.hash)).includes(`pin=${said.query},${said.key}`), 'the address has the pin');
  const row = sampleWeights[4][7][said.query], order = row.map((w, j) => [w, j]).sort((a, b) => b[0] - a[0]).map(e => e[1]);
  equal(await tableKeys(page), order.slice(0, 10), 'strongest keys');
  await page.mouse.move(box.x + box.width * .45, box.y + box.height * .3);
  await settled(page);
  equal(await tableKeys(page), order.slice(0, 10), 'the table stays with the pin');
  await page.mouse.move(5, 5);
  await settled(page);
  expect((await page.locator('#readout').textContent()).startsWith('Pinned: '), 'the pinned cell is said when nothing is pointed at');
  await page.keyboard.press('Escape');
  await settled(page);
  expect(!(await page.evaluate(() => location.hash)).includes('pin'), 'no pin in the address');
  expect(await page.locator('#unpin').isHidden(), 'Unpin is gone');
  return page;
});

await test('everything works by keys, and the live region says it', async () => {
  const page = await open(`${samplePage}#layer=4&head=7`);
  await page.locator('#map').focus();
  for (const key of ['ArrowDown', 'ArrowDown', 'ArrowRight', 'End', 'ArrowLeft']) await page.keyboard.press(key);
  await settled(page);
  let said = await readout(page);
  equal([said.query, said.key], [1, 11], 'cell');
  await page.waitForFunction(() => /^query the \(1\), key \. \(11\): \S+, rank \d+ of 13$/.test(document.getElementById('live').textContent));
  await page.keyboard.press('Enter');
  await settled(page);
  expect((await page.evaluate(() => location.hash)).includes('pin=1,11'), 'Enter pins');
  await page.keyboard.press('Control+End');
  await settled(page);
  said = await readout(page);
  equal([said.query, said.key], [12, 12], 'last cell');
  await page.keyboard.press('PageUp');
  await page.keyboard.press('Home');
  await settled(page);
  said = await readout(page);
  equal([said.query, said.key], [2, 0], 'ten up, first key');
  await page.keyboard.press('Escape');
  await page.keyboard.press('l');
  await page.keyboard.press('j');
  equal(await page.locator('#map-title').textContent(), 'Layer 5, head 8', 'next head, next layer');
  await page.keyboard.press('s');
  equal(await page.locator('#scale').inputValue(), 'log', 'scale');
  const before = await page.locator('#canvas').screenshot();
  for (let n = 0; n < 3; ++n) await page.keyboard.press('+');
  await settled(page);
  expect(!before.equals(await page.locator('#canvas').screenshot()), 'zooming changes the picture');
  await page.keyboard.press('0');
  await page.keyboard.press('?');
  expect(await page.locator('#help').isVisible(), 'help opens');
  await page.keyboard.press('Escape');
  expect(await page.locator('#help').isHidden(), 'help closes');
  await page.locator('.thumb[tabindex="0"]').focus();
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('Home');
  equal(await page.locator('#map-title').textContent(), 'Layer 4, head 0', 'arrow keys in the grid');
  return page;
});

await test('the grid says what each head does', async () => {
  const page = await open(samplePage);
  equal(await page.locator('.thumb').count(), 72, 'heads');
  const json = JSON.parse(execFileSync(qkv, ['see', sample, '--json'], { stdio: 'pipe' }));
  const facts = json.layers[3].heads, label = await page.locator('.thumb').nth(3 * 12 + 5).textContent();
  expect(label.startsWith(`Layer 3, head 5: entropy ${facts[5].entropy.toFixed(2)}`), `label '${label}'`);
  const colors = await page.evaluate(() => [...document.querySelectorAll('.thumb canvas')].map(c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size));
  expect(colors.every(n => n > 1), 'every small picture has colours');
  return page;
});

await test('12 layers of 12 heads of 128 tokens paint under a second', async () => {
  const address = make('many', 'many.npz', '--causal'), times = [];
  for (let n = 0; n < 3 && Math.min(...times, Infinity) >= 1000; ++n) {  // the best of three
    const page = await open(`${address}#layer=7&head=3`);
    times.push(await page.evaluate(() => Math.max(...['qkv-map-painted', 'qkv-heads-painted'].map(name => performance.getEntriesByName(name)[0].startTime))));
    if (n === 0) await expectCells(page, 'many');
    equal(page.wrong, [], 'errors');
  }
  console.log(`       painted after ${times.map(Math.round).join(', ')} ms`);
  const limit = 1000 * stretch();
  expect(Math.min(...times) < limit, `painted after ${times} ms, limit ${limit}`);
});

await test('a causal head of 2,048 tokens is recomputed and has the right numbers', async () => {
  const page = await open(`${longPage}#head=1`);
  const source = await page.locator('#source').textContent();
  expect(source.includes('recomputes') && /at most \de?-?\d*|at most 0\.\d+/.test(source), source);
  await expectCells(page, 'long');
  equal((await at(page, 10, 11)).weight, 'hidden', 'a pair above the diagonal');
  const [row] = Object.keys(expected.long.strongest);
  await at(page, +row, 0);
  equal((await tableKeys(page)).slice(0, 3), expected.long.strongest[row].slice(0, Math.min(3, +row + 1)), 'strongest keys');
  return page;
});

await test('2,048 tokens zoom and scroll without a frame over 100 ms', async () => {
  let best = Infinity, all = [];
  for (let attempt = 0; attempt < 3 && best > 100; ++attempt) {  // the best of three
    const page = await open(`${longPage}#head=${attempt % 2}`);
    const box = await page.locator('#canvas').boundingBox(), x = box.x + box.width * .5, y = box.y + box.height * .5;
    await page.evaluate(() => { window.gaps = []; let last = performance.now(); const tick = () => { const now = performance.now(); window.gaps.push(now - last); last = now; requestAnimationFrame(tick); }; requestAnimationFrame(tick); });
    await page.mouse.move(x, y);
    for (let n = 0; n < 25; ++n) await page.mouse.wheel(0, -60);
    await page.mouse.down();
    for (let n = 0; n < 40; ++n) await page.mouse.move(x - 6 * n, y - 5 * n);
    await page.mouse.up();
    for (let n = 0; n < 25; ++n) await page.mouse.wheel(0, 60);
    await settled(page);
    const gaps = await page.evaluate(() => window.gaps.slice(1));
    expect(gaps.length > 20, 'frames were drawn');
    all.push(Math.round(Math.max(...gaps)));
    best = Math.min(best, Math.max(...gaps));
    equal(page.wrong, [], 'errors');
  }
  console.log(`       longest frame ${all.join(', ')} ms`);
  const limit = 100 * stretch();
  expect(best <= limit, `longest frame ${best} ms, limit ${limit}`);
});

await test('zoomed in, the pointer still finds the right cell', async () => {
  const page = await open(`${longPage}#head=1`);
  const box = await page.locator('#canvas').boundingBox(), x = box.x + box.width * .45, y = box.y + box.height * .7;
  await page.mouse.move(x, y);
  await settled(page);
  const before = await readout(page);
  for (let n = 0; n < 60; ++n) await page.mouse.wheel(0, -100);
  await settled(page);
  const after = await readout(page);
  expect(Math.abs(before.query - after.query) < 6 && Math.abs(before.key - after.key) < 6, `${before.text} | ${after.text}`);
  await page.mouse.move(x + 64, y);
  await settled(page);
  const right = await readout(page);
  equal([right.query, right.key], [after.query, after.key + 1], 'the cell to the right');
  return page;
});

await test('weights from a file, exact 0, too small for float16', async () => {
  const page = await open(`${make('weights', 'weights.npy')}#head=1`);
  await expectCells(page, 'weights');
  equal((await at(page, 3, 5)).weight, '0', 'exact 0');
  expect(Number((await at(page, 3, 6)).weight) > 0, 'a tiny weight is not 0');
  const text = await page.locator('#map-section').textContent();
  expect(text.includes('come from the file'), 'the source is said');
  return page;
});

for (const name of ['nan', 'nan_long']) {
  await test(`a row of NaN shows as such and harms no other: ${name}`, async () => {
    const page = await open(make(name, `${name}.npz`, '--causal'));
    equal((await at(page, 4, 2)).weight, 'NaN', 'in the row');
    expect((await page.locator('#row-caption').textContent()).includes('all its weights are NaN'), 'the table says so');
    equal((await at(page, 4, 5)).weight, 'hidden', 'hidden in the row');
    expect(Number((await at(page, 5, 2)).weight) > 0, 'the next row');
    expect((await page.locator('#legend').textContent()).includes('NaN'), 'NaN is in the legend');
    return page;
  });
}

await test('tokens that look like markup stay text, in any script', async () => {
  const page = await open(make('odd', 'odd.npz'));
  equal(await page.evaluate(() => document.querySelectorAll('#row-section script, main img, #tip script').length), 0, 'elements out of tokens');
  const said = await at(page, 0, 4);
  expect(said.text.includes("<script>document.title='run'</script> (0)"), said.text);
  expect(said.text.includes('你好 (4)'), said.text);
  await at(page, 5, 6);
  const text = await page.locator('#row-section').textContent();
  for (const token of ['<script>', '</script>', '<!--', '&amp;', '你好', '👩‍👩‍👧', 'עברית', '<img src=x onerror=alert(1)>']) expect(text.includes(token), `${token} in '${text}'`);
  expect((await page.title()).startsWith('Head 0'), 'the title is the page\'s');
  await expectCells(page, 'odd');
  return page;
});

await test('window and soft-cap are drawn from 8-bit tiles within 3 %, and said so', async () => {
  const page = await open(make('capped', 'capped.npz', '--causal', '--window', '64,0', '--softcap', '5'));
  expect((await page.locator('#source').textContent()).includes('8 bits'), 'the source is said');
  await expectCells(page, 'capped', .08, 1e-6);
  equal((await at(page, 300, 100)).weight, 'hidden', 'outside of the window');
  return page;
});

await test('window, length, scale and sinks are recomputed in the page, and said so', async () => {
  const page = await open(`${make('masked', 'masked.npz', '--causal', '--window', '100,0', '--align', 'top_left', '--scale', '0.3')}#head=1`);
  expect((await page.locator('#source').textContent()).includes('recomputes those on view'), 'the source is said');
  await expectCells(page, 'masked');
  for (const [query, key] of [[10, 11], [300, 100], [699, 660]]) equal((await at(page, query, key)).weight, 'hidden', `(${query}, ${key})`);
  return page;
});

await test('cross-attention in a batch: entries, lengths, no tokens', async () => {
  const page = await open(`${make('cross', 'cross.npz')}#head=1&batch=1`);
  expect((await page.locator('#map-title').textContent()).includes('batch entry 1'), 'batch entry');
  await expectCells(page, 'cross');
  equal((await at(page, 0, 35)).weight, 'hidden', 'past the length');
  await page.locator('#batch').selectOption('0');
  expect((await page.locator('#map-title').textContent()).includes('batch entry 0'), 'the selector chooses');
  expect((await at(page, 0, 35)).weight !== 'hidden', 'entry 0 has all keys');
  return page;
});

await test('packed sequences of different lengths, one of them empty', async () => {
  const page = await open(`${make('packed', 'packed.npz', '--causal')}#head=3&batch=2`);
  await expectCells(page, 'packed');
  await page.locator('#batch').selectOption('1');
  await settled(page);
  equal(await page.locator('#map').getAttribute('aria-label'), 'Heat map of head 3, batch entry 1, 0 queries by 0 keys', 'an empty sequence');
  await page.locator('#map').focus();
  for (const key of ['ArrowRight', 'Enter', 'End', '+', '0', 'l']) await page.keyboard.press(key);
  await settled(page);
  await page.locator('#batch').selectOption('0');
  await settled(page);
  equal((await at(page, 0, 0)).weight, '1.000', 'the first row of a causal head');
  return page;
});

for (const colorScheme of ['light', 'dark']) {
  await test(`axe-core finds nothing, ${colorScheme}`, async () => {
    for (const [address, options] of [[`${samplePage}#layer=4&head=7&pin=5,4`, {}], [longPage, {}], [samplePage, { viewport: { width: 390, height: 844 }, hasTouch: true }]]) {
      const page = await open(address, { colorScheme, ...options });
      for (const help of [false, true]) {
        if (help) await page.locator('#help-open').click();
        await page.evaluate(axe.source);
        const { violations } = await page.evaluate(() => axe.run(document, { resultTypes: ['violations'] }));
        equal(violations.map(v => `${v.id}: ${v.nodes[0].html.slice(0, 120)} ${v.nodes[0].failureSummary ?? ''}`), [], 'violations');
      }
      equal(page.wrong, [], 'errors');
    }
  });
}

await test('forced colours, reduced motion and twice the text size still show everything', async () => {
  const page = await open(samplePage, { forcedColors: 'active', reducedMotion: 'reduce', viewport: { width: 640, height: 400 }, deviceScaleFactor: 2 });
  const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(wide <= 0, `the page is ${wide} pixels too wide`);
  expect(await page.locator('#map').isVisible(), 'the map is there');
  return page;
});

await test('a finger pins with a tap', async () => {
  const page = await open(samplePage, { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
  const box = await page.locator('#canvas').boundingBox();
  await page.touchscreen.tap(box.x + box.width * .6, box.y + box.height * .6);
  await settled(page);
  expect((await page.evaluate(() => location.hash)).includes('pin='), 'pinned');
  return page;
});

await test('inside another page, as a notebook shows it, it draws, begins with what was asked for, and its help closes', async () => {
  const inner = readFileSync(fileURLToPath(make('inner', sample, '--layer', '4', '--head', '7', '--scale', 'lift')), 'utf8');
  const text = inner.replaceAll('&', '&amp;').replaceAll('"', '&quot;'), outer = join(folder, 'outer.html');
  writeFileSync(outer, `<!DOCTYPE html><title>Notebook</title><iframe width="1000" height="700" sandbox="allow-scripts allow-forms" srcdoc="${text}"></iframe>`);
  const page = await (await browser.newContext({ viewport: { width: 1280, height: 800 } })).newPage();
  page.wrong = [];
  page.on('pageerror', e => page.wrong.push(`error ${e.message}`));
  page.on('console', m => { if (m.type() === 'error') page.wrong.push(`console ${m.text()}`); });
  await page.goto(pathToFileURL(outer).href);
  const frame = page.frames()[1];
  await painted(frame);
  equal(await frame.locator('#scale').inputValue(), 'lift', 'scale');
  await frame.locator('#canvas').click();
  await frame.locator('#unpin').waitFor();
  await frame.locator('#help-open').click();
  await frame.locator('#help-close').click();
  return page;
});

if (screenshots) {
  const views = { sample: `${samplePage}#layer=4&head=7&pin=5,4`, long: `${longPage}#head=1&scale=log`, lift: `${longPage}#head=0&scale=lift`, many: `${pathToFileURL(join(folder, 'many.html')).href}#layer=7&head=3&scale=log` };
  for (const [name, address] of Object.entries(views)) {
    for (const colorScheme of ['light', 'dark']) {
      for (const [width, height] of [[1280, 800], [390, 844]]) {
        const page = await open(address, { colorScheme, viewport: { width, height } });
        await settled(page);
        await page.screenshot({ path: join(screenshots, `${name}-${colorScheme}-${width}.png`), fullPage: width < 800 });
        await page.context().close();
      }
    }
  }
}

await browser.close();
rmSync(folder, { recursive: true });
console.log(`\n${passed} passed, ${failed} failed`);
process.exit(failed > 0 ? 1 : 0);
