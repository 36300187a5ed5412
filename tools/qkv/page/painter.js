// Tiles of a head as small pictures: made a few at a time between frames, kept while they are of use.

const MOST_TILES = 320;  // 20 MB of numbers

class Painter {
  constructor(head, scale, which) {
    this.head = head;
    this.tiles = new Map();  // "row,column" to { values, rows, columns, pictures }
    this.across = Math.ceil(head.keys / TILE);
    this.repaint(scale, which);
  }

  /// Other colours, or means in place of maxima: numbers stay, pictures go.
  repaint(scale, which) {
    this.scale = scale;
    this.which = which;
    for (const tile of this.tiles.values()) tile.pictures.clear();
    this.coarse = null;
  }

  /// The whole head from its overview, one pixel a cell; null where the head has none.
  overview() {
    const o = this.head.overview;
    if (!o || o.rows * o.columns === 0 || this.coarse) return this.coarse;
    const values = o.values(this.which), seen = r => this.head.cells.seen(Math.min(this.head.queries - 1, Math.floor((r + .5) * o.cell)));
    this.coarse = this.picture(o.rows, o.columns, (r, c) => values[r * o.columns + c], seen);
    return this.coarse;
  }

  /// The picture of a tile in which each pixel stands for `down` x `across` pairs; null if it has to be made first.
  tile(row, column, down, across) {
    const key = `${row},${column}`, tile = this.tiles.get(key);
    if (!tile) return null;
    this.tiles.delete(key);  // to the end: the first of the map is the one not used for longest
    this.tiles.set(key, tile);
    return tile.pictures.get(`${down},${across}`) ?? null;
  }

  make(row, column, down, across) {
    const key = `${row},${column}`;
    if (!this.tiles.has(key)) this.tiles.set(key, this.compute(row, column));
    if (this.tiles.size > MOST_TILES) this.tiles.delete(this.tiles.keys().next().value);
    const tile = this.tiles.get(key);
    tile.pictures.clear();  // one size at a time
    tile.pictures.set(`${down},${across}`, this.reduced(tile, row * TILE, down, across));
  }

  compute(row, column) {
    const rows = Math.min(TILE, this.head.queries - row * TILE), columns = Math.min(TILE, this.head.keys - column * TILE);
    const values = new Float32Array(rows * columns);
    this.head.cells.fill(values, row * TILE, rows, column * TILE, columns);
    return { values, rows, columns, pictures: new Map() };
  }

  reduced(tile, firstRow, down, across) {
    const { values, rows, columns } = tile, cells = this.head.cells;
    if (down === 1 && across === 1)
      return this.picture(rows, columns, (r, c) => values[r * columns + c], r => cells.seen(firstRow + r));
    const lift = this.scale.name === 'lift', mean = this.which === 'mean';
    const get = (r, c) => {
      let most = HIDDEN, sum = 0, pairs = 0;
      const lastRow = Math.min(rows, (r + 1) * down), lastColumn = Math.min(columns, (c + 1) * across);
      for (let i = r * down; i < lastRow; ++i) {
        const times = lift ? cells.seen(firstRow + i) : 1;
        for (let j = c * across; j < lastColumn; ++j) {
          ++pairs;
          const w = values[i * columns + j];
          if (w === HIDDEN) continue;
          sum += w * times;
          if (!(w * times <= most) && !Number.isNaN(most)) most = w * times;
        }
      }
      return mean && most !== HIDDEN ? sum / pairs : most;
    };
    return this.picture(Math.ceil(rows / down), Math.ceil(columns / across), get, () => 1);
  }

  picture(rows, columns, get, seen) {
    const canvas = new OffscreenCanvas(columns, rows), context = canvas.getContext('2d');
    const image = context.createImageData(columns, rows);
    for (let r = 0; r < rows; ++r) {
      const keys = seen(r);
      for (let c = 0; c < columns; ++c) putPixel(image.data, 4 * (r * columns + c), get(r, c), keys, this.scale);
    }
    context.putImageData(image, 0, 0);
    return canvas;
  }
}
