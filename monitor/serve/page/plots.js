// Plots of CPUs, memory, disks and waiting: of one unit in detail, or of several and the sum of the others.

/* global uPlot */
import { bytes, clean, cpus, element, perSecond, rate, setText } from './figures.js';
import { parentIn } from './tree.js';

const LIVE_S = 600;
// The most samples that are asked for.
const POINTS = 600;
// Colours of lines. Further lines have the same colours, and are dotted.
const COLOURS = 8;
// The most units of a plot.
export const UNITS_MAX = 2 * COLOURS;
// The key of the sum of the units at the top.
const TOTAL = null;

const PLOTS = [
  { name: 'CPUs', key: 'cpu', write: cpus, columns: ['used', 'entitled', 'lent', 'borrowed'] },
  { name: 'Memory', key: 'memory', write: bytes, columns: ['used', 'entitled'], base: 2 },
  { name: 'Disk', key: 'disk', write: rate, columns: ['used', 'entitled'] },
  { name: 'Waiting, in seconds per second', key: 'waiting', write: perSecond, columns: ['cpu', 'memory', 'disk'] },
];

const KEYS = [
  'cpu_used', 'cpu_entitled', 'cpu_lent', 'cpu_borrowed', 'memory_used', 'memory_entitled', 'disk_used', 'disk_entitled',
  'cpu_waiting', 'memory_waiting', 'disk_waiting',
];

// A unit's sample, as /api/history has it; `before` is the unit's state `seconds` earlier.
const sampleOf = (unit, before, seconds) => {
  const waiting = (key) => before && seconds > 0
    ? Math.max(0, unit.totals[key] - before.totals[key]) / 1e9 / seconds : null;
  return {
    cpu_used: unit.cpu.using / 1e6,
    cpu_entitled: unit.cpu.entitled / 1e6,
    cpu_lent: unit.cpu.lent / 1e6,
    cpu_borrowed: unit.cpu.borrowed / 1e6,
    memory_used: unit.memory?.using ?? null,
    memory_entitled: unit.memory?.entitled ?? null,
    disk_used: unit.disk?.using ?? null,
    disk_entitled: unit.disk?.entitled ?? null,
    cpu_waiting: waiting('cpu_waited_ns'),
    memory_waiting: waiting('memory_waited_ns'),
    disk_waiting: waiting('disk_waited_ns'),
  };
};

const sumOf = (samples) => {
  const sum = Object.fromEntries(KEYS.map((key) => [key, null]));
  for (const sample of samples) {
    for (const key of KEYS) if (sample[key] !== null) sum[key] = (sum[key] ?? 0) + sample[key];
  }
  return sum;
};

const two = (n) => String(n).padStart(2, '0');
const day = (date) => `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
const minute = (date) => `${two(date.getHours())}:${two(date.getMinutes())}`;
const dateOf = (seconds) => new Date(seconds * 1000);

export class Plots {
  constructor(holder, note) {
    this.holder = holder;
    this.note = note;
    this.period = LIVE_S;
    this.units = [];
    this.main = null;
    this.hasOthers = false;
    // Samples by unit, by column.
    this.data = new Map();
    this.charts = [];
    // The numbers of the last question for samples, and of the one whose answer is drawn.
    this.asked = 0;
    this.drawn = 0;
    // The time of the last picture, and the end of the period shown, in seconds since 1970.
    this.now = undefined;
    this.end = Date.now() / 1000;
    new ResizeObserver(() => this.resize()).observe(holder);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    matchMedia('print').addEventListener('change', () => this.draw());
    setInterval(() => { if (this.period > LIVE_S) this.load(); }, 60_000);
  }

  // The colour of each unit that is plotted.
  colours() {
    return new Map(this.units.map((unit, i) => [unit, `var(--line-${1 + i % COLOURS})`]));
  }

  // Shows units; if there are several, also the sum of the units outside them, if there are any, and the entitlement of
  // the unit `main`, if it is one of them.
  show(units, main, hasOthers) {
    const key = JSON.stringify([units, main, hasOthers]);
    if (key === this.key) return;
    this.key = key;
    this.units = units;
    this.main = main;
    this.hasOthers = hasOthers;
    this.load();
  }

  showPeriod(seconds) {
    this.period = seconds;
    this.load();
  }

  // Asks for the samples of the period, and draws them.
  async load() {
    const asked = ++this.asked;
    // The machine's clock, if a picture has told it: this browser may be on a machine with another clock.
    const to = Math.floor(this.now ?? Date.now() / 1000) + 1;
    this.end = to;
    const step = Math.max(1, Math.ceil(this.period / POINTS));
    const keys = this.keys();
    const answers = await Promise.all(keys.map(async (unit) => {
      const query = new URLSearchParams({ from: to - this.period, to, step });
      if (unit !== TOTAL) query.set('unit', unit);
      try {
        const answer = await fetch(`/api/history?${query}`);
        return answer.ok ? await answer.json() : null;
      } catch {
        return null;
      }
    }));
    // The selection changed meanwhile.
    if (asked !== this.asked) return;
    this.drawn = asked;
    this.data = new Map(keys.map((unit, i) => [
      unit, answers[i] ?? Object.fromEntries(['t', ...KEYS].map((key) => [key, []])),
    ]));
    this.draw();
  }

  isSingle() {
    return this.units.length === 1;
  }

  // The units whose samples are needed.
  keys() {
    return this.hasOthers && !this.isSingle() ? [...this.units, TOTAL] : this.units;
  }

  // Adds the present state to live plots.
  add(now, units, before, seconds) {
    this.now = now;
    if (this.period > LIVE_S) return;
    this.end = now;
    for (const path of this.keys()) {
      const data = this.data.get(path);
      if (!data) continue;
      // The machine's clock was set back, or the sample is already here.
      while (data.t.length && data.t[data.t.length - 1] >= now) for (const key of ['t', ...KEYS]) data[key].pop();
      const wanted = path === TOTAL ? [...units.keys()].filter((other) => !other.includes('/')) : [path];
      const present = wanted.map((other) => units.get(other)).filter(Boolean);
      const sample = sumOf(present.map((unit) => sampleOf(unit, before?.get(unit.unit), seconds)));
      data.t.push(now);
      for (const key of KEYS) data[key].push(sample[key] ?? null);
      while (data.t[0] < now - LIVE_S) for (const key of ['t', ...KEYS]) data[key].shift();
    }
    this.redraw();
  }

  // Each line of a plot: a unit, its label, and how to get its values.
  lines(plot) {
    if (this.isSingle()) {
      const [unit] = this.units;
      return plot.columns.map((column, i) => {
        const key = plot.key === 'waiting' ? `${column}_waiting` : `${plot.key}_${column}`;
        const dash = column === 'entitled' ? [6, 4] : undefined;
        return { unit, label: column, values: (data) => data[key], stroke: `--line-${i + 1}`, dash };
      });
    }
    const sum = (data) => data.t.map((_, i) => {
      const parts = [data.cpu_waiting[i], data.memory_waiting[i], data.disk_waiting[i]].filter((part) => part !== null);
      return parts.length ? parts.reduce((a, b) => a + b) : null;
    });
    const values = plot.key === 'waiting' ? sum : (data) => data[`${plot.key}_used`];
    const lines = this.keys().map((unit, i) => (unit === TOTAL
      ? { unit, label: 'other units', values, stroke: '--soft' }
      : { unit, label: clean(unit), values, stroke: `--line-${1 + i % COLOURS}`, dash: i < COLOURS ? undefined : [2, 3] }));
    const main = this.main !== null && lines.find((line) => line.unit === this.main);
    if (main && plot.key !== 'waiting') {
      const entitled = (data) => data[`${plot.key}_entitled`];
      lines.push({ ...main, label: `${main.label}, entitled`, values: entitled, dash: [6, 4] });
    }
    return lines;
  }

  // Times, and the values of each line.
  table(plot) {
    const lines = this.lines(plot);
    if (!lines.length || lines.some((line) => !this.data.has(line.unit))) return [[], ...lines.map(() => [])];
    const table = uPlot.join(lines.map((line) => {
      const data = this.data.get(line.unit);
      return [data.t, line.values(data)];
    }));
    const total = lines.findIndex((line) => line.unit === TOTAL);
    if (total >= 0) {
      // A unit's samples include its sub-units.
      const all = new Set(this.units);
      const outermost = this.units.map((unit, i) => [unit, i]).filter(([unit]) => parentIn(all, unit) === null);
      table[total + 1] = Array.from(table[total + 1], (value, at) => {
        const others = outermost.reduce((left, [, i]) => left - (table[i + 1][at] ?? 0), value ?? 0);
        return value === null || value === undefined ? null : Math.max(0, others);
      });
    }
    return table;
  }

  draw() {
    for (const chart of this.charts) chart.uplot.destroy();
    this.holder.replaceChildren();
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const short = this.period > 2 * 86_400 ? day : minute;
    this.charts = PLOTS.map((plot) => {
      const figure = element('figure', 'plot');
      const lines = this.lines(plot);
      const heading = plot.name + (this.isSingle() || plot.key === 'waiting' ? '' : ', used');
      figure.append(element('figcaption', '', heading));
      this.holder.append(figure);
      const axis = { stroke: colour('--soft'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line') } };
      const options = {
        width: figure.clientWidth,
        height: 170,
        cursor: { sync: { key: 'time' }, drag: { x: false, y: false } },
        scales: { x: { range: () => [this.end - this.period, this.end] }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.05 : 1] } },
        axes: [{ ...axis, space: 80, values: (_, splits) => splits.map((at) => short(dateOf(at))) },
          { ...axis, size: 72, space: 24, values: (_, splits) => splits.map(plot.write), ...(plot.base ? { incrs: POWERS } : {}) }],
        series: [
          {
            label: 'time',
            value: (_, at) => (at === null || at === undefined ? '-' : `${day(dateOf(at))} ${minute(dateOf(at))}:${two(dateOf(at).getSeconds())}`),
          },
          ...lines.map((line) => ({
            label: line.label,
            stroke: colour(line.stroke),
            width: 1.5,
            dash: line.dash,
            points: { show: false },
            value: (_, value) => (value === null || value === undefined ? '-' : plot.write(value)),
          })),
        ],
      };
      const uplot = new uPlot(options, this.table(plot), figure);
      uplot.root.setAttribute('role', 'img');
      uplot.root.setAttribute('aria-label', `${heading}; the table of units has the present values`);
      return { plot, uplot, figure };
    });
    this.redraw();
  }

  redraw() {
    // The charts still have the lines of other units.
    if (this.drawn !== this.asked) return;
    let samples = 0;
    for (const { plot, uplot } of this.charts) {
      const table = this.table(plot);
      samples = Math.max(samples, table[0].length);
      uplot.setData(table);
    }
    const names = this.isSingle() ? `${clean(this.units[0])}. ` : '';
    const without = this.units.length === 0 ? 'No unit is chosen.' : samples === 0 ? 'There are no samples of this period.' : '';
    setText(this.note, names + without);
  }

  resize() {
    for (const { uplot, figure } of this.charts) {
      if (figure.clientWidth > 0 && figure.clientWidth !== uplot.width) uplot.setSize({ width: figure.clientWidth, height: 170 });
    }
  }
}

// Distances of an axis of bytes: powers of two.
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
