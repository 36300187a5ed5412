// The weights of one head, from whichever source: row(i), tile(...) and seen(i), the number of keys that a query sees.

/// What stands for a pair that a mask hides: no weight is the lowest float.
const HIDDEN = -3.4028234663852886e38;

/// Every weight is in the page, as float16.
class WeightCells {
  digits = 3;
  constructor(cells, queries, keys) {
    this.keys = keys;
    this.masksUnknown = Boolean(cells.masks_unknown);
    const bits = new Uint16Array(bytesOf(cells.weights).buffer), table = halfTable();
    this.values = new Float32Array(bits.length);
    for (let n = 0; n < bits.length; ++n) this.values[n] = bits[n] === 0xFFFF ? HIDDEN : table[bits[n]] * cells.factor;
    this.counts = new Int32Array(queries).fill(-1);
  }
  row(i) { return this.values.subarray(i * this.keys, (i + 1) * this.keys); }
  seen(i) {
    if (this.counts[i] < 0) this.counts[i] = this.row(i).reduce((n, w) => n + (w === HIDDEN || this.masksUnknown && w === 0 ? 0 : 1), 0);
    return this.counts[i];
  }
  fill(out, firstRow, rows, firstColumn, columns) {
    for (let r = 0; r < rows; ++r) {
      const from = (firstRow + r) * this.keys + firstColumn;
      out.set(this.values.subarray(from, from + columns), r * columns);
    }
  }
}

/// w = exp(factor * q k - lse) for the keys from first[i] to before last[i].
class ScoreCells {
  digits = 3;
  constructor(cells, queries, keys) {
    this.keys = keys;
    this.dim = cells.dim;
    this.factor = cells.factor;
    this.q = numbersOfHalves(cells.q);
    this.k = numbersOfHalves(cells.k);
    this.lse = new Float64Array(bytesOf(cells.lse).buffer);
    this.first = new Int32Array(bytesOf(cells.first).buffer);
    this.last = new Int32Array(bytesOf(cells.last).buffer);
  }
  row(i) {
    const out = new Float32Array(this.keys);
    this.fill(out, i, 1, 0, this.keys);
    return out;
  }
  seen(i) { return this.last[i] - this.first[i]; }
  fill(out, firstRow, rows, firstColumn, columns) {
    out.fill(HIDDEN);
    for (let r = 0; r < rows; ++r) {
      const i = firstRow + r;
      const from = Math.max(this.first[i], firstColumn), to = Math.min(this.last[i], firstColumn + columns);
      for (let j = from; j < to; ++j) out[r * columns + j - firstColumn] = this.weight(i, j);
    }
  }
  weight(i, j) {
    const { q, k, dim } = this, lse = this.lse[i];
    if (lse === -Infinity) return 0;  // every score of the row is -infinity
    let at = i * dim, to = j * dim, a = 0, b = 0;
    const end = at + (dim & ~1);
    for (; at < end; at += 2, to += 2) {
      a += q[at] * k[to];
      b += q[at + 1] * k[to + 1];
    }
    if (dim & 1) a += q[at] * k[to];
    return Math.exp((a + b) * this.factor - lse);
  }
}

/// Weights by their 8-bit code: hidden, exactly 0, tiny, then steps of the logarithm up to 1, NaN.
const codeTable = Float32Array.from({ length: 256 }, (_, code) =>
  code === 0 ? HIDDEN : code === 1 ? 0 : code === 2 ? TINY : code === 255 ? NaN : 10 ** (-6 * (254 - code) / 251));

class CodeCells {
  digits = 2;
  constructor(cells, queries, keys) {
    this.queries = queries;
    this.keys = keys;
    this.masksUnknown = Boolean(cells.masks_unknown);
    this.across = Math.ceil(keys / TILE);
    const count = this.across * Math.ceil(queries / TILE), bytes = bytesOf(cells.codes);
    this.starts = new Uint32Array(bytes.buffer, 0, count);
    this.codes = bytes.subarray(4 * count);
    this.counts = new Uint32Array(bytesOf(cells.seen).buffer);
  }
  row(i) {
    const out = new Float32Array(this.keys), tile = new Float32Array(TILE);
    for (let c = 0; c < this.keys; c += TILE) {
      const columns = Math.min(TILE, this.keys - c);
      this.fill(tile, i, 1, c, columns);
      out.set(tile.subarray(0, columns), c);
    }
    return out;
  }
  seen(i) { return this.counts[i]; }
  /// Columns of one tile only.
  fill(out, firstRow, rows, firstColumn, columns) {
    const down = Math.floor(firstRow / TILE), start = this.starts[down * this.across + firstColumn / TILE];
    if (start === 0xFFFFFFFF) return out.fill(HIDDEN, 0, rows * columns);
    const from = start + (firstRow - down * TILE) * columns;
    for (let n = 0; n < rows * columns; ++n) out[n] = codeTable[this.codes[from + n]];
  }
}

/// Largest or mean weight of squares of pairs, where every pair would be too much for a picture.
class Overview {
  constructor(overview, queries, keys) {
    this.cell = overview.cell;
    this.rows = Math.ceil(queries / this.cell);
    this.columns = Math.ceil(keys / this.cell);
    this.largest = bytesOf(overview.largest);
    this.mean = bytesOf(overview.mean);
  }
  values(which) { return Float32Array.from(this[which], code => codeTable[code]); }
}

const KINDS = { weights: WeightCells, scores: ScoreCells, codes: CodeCells };

/// A head ready to be drawn. Few are kept: the numbers of one can be megabytes.
class Head {
  constructor(layer, sequence, facts) {
    this.layer = layer;
    this.sequence = sequence;
    this.facts = facts;
    this.queries = sequence.queries;
    this.keys = sequence.keys;
    this.cells = new KINDS[facts.cells.kind](facts.cells, this.queries, this.keys);
    this.overview = facts.cells.overview ? new Overview(facts.cells.overview, this.queries, this.keys) : null;
    this.rows = new Map();
  }
  /// The weights of a query; the last few are kept.
  row(i) {
    if (!this.rows.has(i)) {
      if (this.rows.size > 8) this.rows.clear();
      this.rows.set(i, this.cells.row(i));
    }
    return this.rows.get(i);
  }
  weight(i, j) { return this.row(i)[j]; }
  lift(i, j) { return this.weight(i, j) * this.cells.seen(i); }
  /// 1 for the largest weight of the query; ties share a rank.
  rank(i, j) {
    const row = this.row(i), w = row[j];
    return row.reduce((n, other) => n + (other > w ? 1 : 0), 1);
  }
  /// The strongest keys of a query: [[key, weight], ...].
  strongest(i, count) {
    const best = [], row = this.row(i);
    for (let j = 0; j < row.length; ++j) {
      const w = row[j];
      if (w === HIDDEN || Number.isNaN(w) || best.length === count && w <= best[count - 1][1]) continue;
      let at = best.length;
      while (at > 0 && best[at - 1][1] < w) --at;
      best.splice(at, 0, [j, w]);
      if (best.length > count) best.pop();
    }
    return best;
  }
}

const kept = [];
function headAt(layer, sequence, facts) {
  const found = kept.findIndex(head => head.facts === facts);
  if (found >= 0) return kept[found];
  kept.unshift(new Head(layer, sequence, facts));
  if (kept.length > 4) kept.pop();
  return kept[0];
}
