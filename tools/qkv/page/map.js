// The heat map: a window onto the matrix, with labels at its sides. Rows are queries, columns are keys.

const LARGEST_CELL = 64, FITTED_CELL = 48, SMALLEST_NUMBERED = 30, ROOM_FOR_SMALL = 50;  // CSS pixels
const WORK = 7;  // milliseconds of computing between two frames

class HeatMap {
  constructor(box, canvas, hooks) {
    Object.assign(this, { box, canvas, hooks, cursor: null, pin: null, head: null, painter: null });
    this.context = canvas.getContext('2d');
    this.view = { left: 0, top: 0, zx: 1, zy: 1 };  // in pairs, and CSS pixels a pair
    this.readTheme();
    new ResizeObserver(() => this.resize()).observe(box);
    this.listen();
  }

  show(head, scale, which) {
    const same = this.head && this.head.queries === head.queries && this.head.keys === head.keys;
    this.head = head;
    this.painter = new Painter(head, scale, which);
    this.measure();
    if (!same || !this.zoomed) this.fit();
    this.schedule();
  }
  repaint(scale, which) {
    this.painter.repaint(scale, which);
    this.schedule();
  }
  readTheme() {
    this.theme = Object.fromEntries(['paper', 'ink', 'quiet', 'line', 'accent', 'accent-paper'].map(name => [name, themeColor(name)]));
    this.hatch = hatching(this.context);
    this.schedule();
  }

  // ---- geometry ----

  resize() {
    const ratio = devicePixelRatio || 1, box = this.box.getBoundingClientRect();
    this.width = box.width;
    this.height = box.height;
    this.ratio = ratio;
    this.canvas.width = Math.max(1, Math.round(box.width * ratio));
    this.canvas.height = Math.max(1, Math.round(box.height * ratio));
    if (!this.head) return;
    this.measure();
    if (this.zoomed) this.clamp();
    else this.fit();
    this.frame();  // now: a canvas that was resized is empty
  }

  /// Room for labels: the longest token, within reason.
  measure() {
    const c = this.context, { sequence } = this.head;
    c.font = this.font(650);
    const widest = (list, count) => list === null ? 0
      : facts.tokens[list].slice(0, 4096).reduce((most, token) => Math.max(most, c.measureText(token).width), 0);
    const digits = n => c.measureText('0'.repeat(String(Math.max(0, n - 1)).length)).width;
    const most = Math.min(128, this.width * .22);
    this.left = 8 + digits(this.head.queries) + (sequence.query_tokens === null ? 0 : Math.min(most, 6 + widest(sequence.query_tokens)));
    this.top = 8 + digits(this.head.keys) + (sequence.key_tokens === null ? 0 : Math.min(most, 6 + widest(sequence.key_tokens)));
  }
  font(weight = 400) { return `${weight} 12px system-ui, sans-serif`; }
  get plotWidth() { return Math.max(1, this.width - this.left - 1); }
  get plotHeight() { return Math.max(1, this.height - this.top - 1); }

  smallest() {
    const { queries, keys } = this.head;
    const zx = this.plotWidth / Math.max(1, keys), zy = this.plotHeight / Math.max(1, queries);
    // A matrix that is much longer than high, or higher than long, is stretched: a row of a hair's breadth shows nothing.
    const z = Math.min(zx, zy, FITTED_CELL);
    return { zx: Math.min(zx, Math.max(z, z < 4 && keys < queries ? 16 : z)), zy: Math.min(zy, Math.max(z, z < 4 && queries < keys ? 16 : z)) };
  }
  fit() {
    Object.assign(this.view, { left: 0, top: 0 }, this.smallest());
    this.zoomed = false;
    this.box.classList.remove('zoomed');
    this.schedule();
  }
  clamp() {
    const v = this.view;
    v.left = Math.max(0, Math.min(v.left, this.head.keys - this.plotWidth / v.zx));
    v.top = Math.max(0, Math.min(v.top, this.head.queries - this.plotHeight / v.zy));
  }
  /// Around a point of the box, in CSS pixels.
  zoom(factor, x = this.left + this.plotWidth / 2, y = this.top + this.plotHeight / 2) {
    const v = this.view, least = this.smallest();
    const px = v.left + (x - this.left) / v.zx, py = v.top + (y - this.top) / v.zy;
    v.zx = Math.max(least.zx, Math.min(v.zx * factor, Math.max(LARGEST_CELL, least.zx)));
    v.zy = Math.max(least.zy, Math.min(v.zy * factor, Math.max(LARGEST_CELL, least.zy)));
    if (v.zx === least.zx && v.zy === least.zy) return this.fit();
    v.left = px - (x - this.left) / v.zx;
    v.top = py - (y - this.top) / v.zy;
    this.zoomed = true;
    this.box.classList.add('zoomed');
    this.clamp();
    this.schedule();
  }
  pan(dx, dy) {
    this.view.left -= dx / this.view.zx;
    this.view.top -= dy / this.view.zy;
    this.clamp();
    this.schedule();
  }
  x(key) { return this.left + (key - this.view.left) * this.view.zx; }
  y(query) { return this.top + (query - this.view.top) * this.view.zy; }
  /// The cell at a point of the box, or null.
  cellAt(x, y) {
    if (x < this.left || y < this.top) return null;
    const key = Math.floor(this.view.left + (x - this.left) / this.view.zx), query = Math.floor(this.view.top + (y - this.top) / this.view.zy);
    return key < this.head.keys && query < this.head.queries ? { query, key } : null;
  }
  /// Moves the window so that a cell is in it.
  reveal({ query, key }) {
    const v = this.view, across = this.plotWidth / v.zx, down = this.plotHeight / v.zy;
    if (key < v.left) v.left = key;
    if (key + 1 > v.left + across) v.left = key + 1 - across;
    if (query < v.top) v.top = query;
    if (query + 1 > v.top + down) v.top = query + 1 - down;
    this.clamp();
    this.schedule();
  }

  // ---- mouse and fingers ----

  listen() {
    const box = this.box, pointers = new Map();
    const place = e => { const r = box.getBoundingClientRect(); return { x: e.clientX - r.left, y: e.clientY - r.top }; };
    let moved = 0, spread = 0;
    const distance = () => { const [a, b] = [...pointers.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
    box.addEventListener('wheel', e => {
      e.preventDefault();
      const p = place(e);
      this.zoom(2 ** (-Math.max(-200, Math.min(200, e.deltaY * (e.deltaMode ? 30 : 1))) / 240), p.x, p.y);
      this.hooks.hover(this.cellAt(p.x, p.y), p);
    }, { passive: false });
    box.addEventListener('pointerdown', e => {
      if (e.button !== 0) return;
      box.focus({ preventScroll: true });
      if (pointers.size === 0) moved = 0;
      pointers.set(e.pointerId, place(e));
      if (pointers.size === 2) spread = distance();
      box.setPointerCapture(e.pointerId);
    });
    box.addEventListener('pointermove', e => {
      const p = place(e), before = pointers.get(e.pointerId);
      if (!before) return this.hooks.hover(this.cellAt(p.x, p.y), p);
      pointers.set(e.pointerId, p);
      moved += Math.abs(p.x - before.x) + Math.abs(p.y - before.y);
      if (moved < 5) return;
      box.classList.toggle('dragged', this.zoomed);
      if (pointers.size === 2) {
        const now = distance(), [a, b] = [...pointers.values()];
        this.zoom(now / spread, (a.x + b.x) / 2, (a.y + b.y) / 2);
        spread = now;
      }
      if (this.zoomed) this.pan((p.x - before.x) / pointers.size, (p.y - before.y) / pointers.size);
    });
    const up = e => {
      if (!pointers.delete(e.pointerId)) return;
      box.classList.remove('dragged');
      const p = place(e), cell = this.cellAt(p.x, p.y);
      if (e.type === 'pointerup' && moved < 5 && cell) {
        this.hooks.hover(cell, p);
        this.hooks.pick(cell);
      }
    };
    box.addEventListener('pointerup', up);
    box.addEventListener('pointercancel', up);
    box.addEventListener('pointerleave', e => { if (!pointers.has(e.pointerId)) this.hooks.hover(null); });
  }

  // ---- drawing ----

  schedule() {
    this.pending ??= requestAnimationFrame(() => { this.pending = null; this.frame(); });
  }
  frame() {
    if (!this.head || !this.width) return;
    const wanted = this.draw();
    const end = performance.now() + WORK;
    for (const job of wanted) {
      this.painter.make(...job);
      if (performance.now() > end) break;
    }
    if (wanted.length > 0) this.schedule();
    else this.hooks.complete();
  }

  /// Draws what is there and returns the tiles that are missing, nearest to the middle first.
  draw() {
    const c = this.context;
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.clearRect(0, 0, this.width, this.height);
    c.save();
    c.beginPath();
    c.rect(this.left, this.top, this.plotWidth, this.plotHeight);
    c.clip();
    const { queries, keys } = this.head;
    c.fillStyle = this.hatch;
    c.fillRect(this.x(0), this.y(0), keys * this.view.zx, queries * this.view.zy);
    const wanted = this.drawTiles(c);
    this.drawNumbers(c);
    c.restore();
    this.drawLabels(c);
    this.drawMarks(c);
    return wanted;
  }

  /// How many pairs in a row share a device pixel: 1, 2, 4, ...
  pairs(z) { return 2 ** Math.max(0, Math.ceil(Math.log2(1 / (z * this.ratio)) - .01)); }
  /// Whether some do when all of the matrix is on view.
  shares() {
    const { zx, zy } = this.smallest();
    return this.pairs(Math.min(zx, zy)) > 1;
  }

  /// Edges fall on device pixels, so that neighbours leave no seam.
  snap(x) { return Math.round(x * this.ratio) / this.ratio; }
  put(c, picture, firstRow, firstColumn, rows, columns) {
    const x = this.snap(this.x(firstColumn)), y = this.snap(this.y(firstRow));
    c.drawImage(picture, x, y, this.snap(this.x(firstColumn + columns)) - x, this.snap(this.y(firstRow + rows)) - y);
  }

  drawTiles(c) {
    const v = this.view, { queries, keys } = this.head, wanted = [];
    const down = Math.min(TILE, this.pairs(v.zy)), across = Math.min(TILE, this.pairs(v.zx));
    const r0 = Math.floor(v.top / TILE), r1 = Math.ceil(Math.min(queries, v.top + this.plotHeight / v.zy) / TILE);
    const c0 = Math.floor(v.left / TILE), c1 = Math.ceil(Math.min(keys, v.left + this.plotWidth / v.zx) / TILE);
    const overview = this.painter.overview(), many = (r1 - r0) * (c1 - c0) > MOST_TILES;
    c.imageSmoothingEnabled = false;
    this.coarse = Boolean(many && overview);
    this.shared = this.coarse ? this.head.overview.cell ** 2 : down * across;
    const pictures = [];
    for (let r = r0; r < r1 && !this.coarse; ++r) {
      for (let k = c0; k < c1; ++k) {
        const picture = this.painter.tile(r, k, down, across);
        if (picture) pictures.push([picture, r, k]);
        else wanted.push([r, k, down, across]);
      }
    }
    if (overview && (this.coarse || wanted.length > 0)) {
      const cell = this.head.overview.cell;
      this.put(c, overview, 0, 0, this.head.overview.rows * cell, this.head.overview.columns * cell);
    }
    for (const [picture, r, k] of pictures) {
      const rows = picture.height * down, columns = picture.width * across;
      if (overview && wanted.length > 0) {
        c.fillStyle = this.hatch;
        c.fillRect(this.snap(this.x(k * TILE)), this.snap(this.y(r * TILE)), Math.min(columns, keys - k * TILE) * v.zx, Math.min(rows, queries - r * TILE) * v.zy);
      }
      this.put(c, picture, r * TILE, k * TILE, rows, columns);
    }
    const middle = [(r0 + r1 - 1) / 2, (c0 + c1 - 1) / 2];
    return wanted.sort((a, b) => Math.hypot(a[0] - middle[0], a[1] - middle[1]) - Math.hypot(b[0] - middle[0], b[1] - middle[1]));
  }

  drawNumbers(c) {
    const v = this.view;
    if (Math.min(v.zx, v.zy) < SMALLEST_NUMBERED) return;
    const { head, painter } = this;
    c.font = this.font();
    c.textAlign = 'center';
    c.textBaseline = 'middle';
    const lastRow = Math.min(head.queries, Math.ceil(v.top + this.plotHeight / v.zy)), lastKey = Math.min(head.keys, Math.ceil(v.left + this.plotWidth / v.zx));
    for (let i = Math.floor(v.top); i < lastRow; ++i) {
      const row = head.row(i), seen = head.cells.seen(i);
      for (let j = Math.floor(v.left); j < lastKey; ++j) {
        const w = row[j];
        const small = Math.abs(w) < .005;
        if (w === HIDDEN || w === 0 || small && v.zx < ROOM_FOR_SMALL) continue;
        c.fillStyle = inkOn(w, seen, painter.scale);
        const text = Number.isNaN(w) ? 'NaN' : small ? w.toExponential(0) : Math.abs(w) < .995 ? w.toFixed(2).replace('0.', '.') : w.toPrecision(2);
        c.fillText(text, this.x(j + .5), this.y(i + .5));
      }
    }
  }

  /// Steps of 1, 2, 5, 10 ... so that labels keep a distance.
  step(z) {
    const least = 14 / z;
    if (least <= 1) return 1;
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map(n => n * power).find(n => n >= least);
  }

  drawLabels(c) {
    const v = this.view, { head } = this, { sequence } = head;
    c.textBaseline = 'middle';
    const stepY = this.step(v.zy), stepX = this.step(v.zx);
    const lastRow = Math.min(head.queries, v.top + this.plotHeight / v.zy), lastKey = Math.min(head.keys, v.left + this.plotWidth / v.zx);
    for (let i = Math.ceil(Math.max(0, v.top - .5) / stepY) * stepY; i < lastRow - .4; i += stepY)
      this.rowLabel(c, i, stepY === 1 ? queryToken(sequence, i) : null, this.theme.quiet, 400);
    for (let j = Math.ceil(Math.max(0, v.left - .5) / stepX) * stepX; j < lastKey - .4; j += stepX)
      this.keyLabel(c, j, stepX === 1 ? keyToken(sequence, j) : null, this.theme.quiet, 400);
    for (const [cell, strong] of [[this.pin, true], [this.cursor, true]]) {
      if (!cell) continue;
      this.marked(c, cell.query, v.top, lastRow, () => this.rowLabel(c, cell.query, queryToken(sequence, cell.query), this.theme.ink, 650, strong));
      this.marked(c, cell.key, v.left, lastKey, () => this.keyLabel(c, cell.key, keyToken(sequence, cell.key), this.theme.ink, 650, strong));
    }
  }
  marked(c, index, first, last, draw) {
    if (index + .5 >= first && index + .5 <= last) draw();
  }
  label(c, token, index, room, color, weight, end) {
    c.font = this.font(weight);
    c.fillStyle = color;
    c.textAlign = 'right';
    const number = String(index), space = token === null ? 0 : c.measureText(number).width + 6;
    c.fillText(number, end, 0);
    if (token === null) return;
    c.textAlign = 'right';
    c.fillText(this.cut(c, token, room - space), end - space, 0);
  }
  cut(c, text, room) {
    if (c.measureText(text).width <= room) return text;
    const letters = [...text];
    while (letters.length > 1 && c.measureText(letters.join('') + '…').width > room) letters.pop();
    return letters.join('') + '…';
  }
  rowLabel(c, i, token, color, weight, box = false) {
    const y = Math.max(8, Math.min(this.y(i + .5), this.height - 8));
    c.save();
    c.translate(0, y);
    if (box) { c.fillStyle = this.theme['accent-paper']; c.fillRect(0, -8, this.left - 2, 16); }
    this.label(c, token, i, this.left - 6, color, weight, this.left - 5);
    c.restore();
  }
  keyLabel(c, j, token, color, weight, box = false) {
    const x = Math.min(this.x(j + .5), this.width - 8);
    c.save();
    c.translate(x, 0);
    c.rotate(Math.PI / 2);
    if (box) { c.fillStyle = this.theme['accent-paper']; c.fillRect(0, -8, this.top - 2, 16); }
    this.label(c, token, j, this.top - 6, color, weight, this.top - 5);
    c.restore();
  }

  drawMarks(c) {
    c.save();
    c.beginPath();
    c.rect(this.left - 1, this.top - 1, this.plotWidth + 2, this.plotHeight + 2);
    c.clip();
    const v = this.view, right = Math.min(this.x(this.head.keys), this.left + this.plotWidth), bottom = Math.min(this.y(this.head.queries), this.top + this.plotHeight);
    if (this.cursor) {
      const x = this.x(this.cursor.key), y = this.y(this.cursor.query), w = Math.max(1, v.zx), h = Math.max(1, v.zy);
      for (const [color, width] of [['rgb(0 0 0 / .55)', 2.5], ['rgb(255 255 255 / .9)', 1]]) {
        c.strokeStyle = color;
        c.lineWidth = width;
        c.strokeRect(this.left - 2, y, right - this.left + 4, h);
        c.strokeRect(x, this.top - 2, w, bottom - this.top + 4);
      }
    }
    if (this.pin) {
      const w = Math.max(8, v.zx), h = Math.max(8, v.zy);
      const x = this.x(this.pin.key + .5) - w / 2, y = this.y(this.pin.query + .5) - h / 2;
      for (const [color, width] of [['#000', 5], ['#fff', 3], ['#c8002f', 1.5]]) {
        c.strokeStyle = color;
        c.lineWidth = width;
        c.strokeRect(x, y, w, h);
      }
    }
    c.restore();
  }
}
