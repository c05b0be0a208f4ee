// Plots of CPUs, memory, disks and waiting: of all units at the top, or of one unit.

/* global uPlot */
import { bytes, clean, cpus, element, perSecond, rate } from './figures.js';

const LIVE_S = 600;
// The most samples that are asked for.
const POINTS = 600;
// The most lines of one plot.
const LINES = 8;

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
    this.single = false;
    // Samples by unit, by column.
    this.data = new Map();
    this.charts = [];
    this.asked = 0;
    // The time of the last picture, and the end of the period shown, in seconds since 1970.
    this.now = undefined;
    this.end = Date.now() / 1000;
    new ResizeObserver(() => this.resize()).observe(holder);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
    matchMedia('print').addEventListener('change', () => this.draw());
    setInterval(() => { if (this.period > LIVE_S) this.load(); }, 60_000);
  }

  // Shows one unit, or several at once.
  show(paths, single) {
    const units = paths.slice(0, LINES);
    this.leftOut = paths.length - units.length;
    if (single === this.single && units.length === this.units.length && units.every((path, i) => path === this.units[i])) return;
    this.units = units;
    this.single = single;
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
    const answers = await Promise.all(this.units.map(async (unit) => {
      const query = new URLSearchParams({ unit, from: to - this.period, to, step });
      try {
        const answer = await fetch(`/api/history?${query}`);
        return answer.ok ? await answer.json() : null;
      } catch {
        return null;
      }
    }));
    // The selection changed meanwhile.
    if (asked !== this.asked) return;
    this.data = new Map(this.units.map((unit, i) => [
      unit, answers[i] ?? Object.fromEntries(['t', ...KEYS].map((key) => [key, []])),
    ]));
    this.draw();
  }

  // Adds the present state to live plots.
  add(now, units, before, seconds) {
    this.now = now;
    if (this.period > LIVE_S) return;
    this.end = now;
    for (const path of this.units) {
      const data = this.data.get(path);
      const unit = units.get(path);
      if (!data) continue;
      // The machine's clock was set back, or the sample is already here.
      while (data.t.length && data.t[data.t.length - 1] >= now) for (const key of ['t', ...KEYS]) data[key].pop();
      const sample = unit ? sampleOf(unit, before?.get(path), seconds) : {};
      data.t.push(now);
      for (const key of KEYS) data[key].push(sample[key] ?? null);
      while (data.t[0] < now - LIVE_S) for (const key of ['t', ...KEYS]) data[key].shift();
    }
    this.redraw();
  }

  // Each line of a plot: a unit, its label, and how to get its values.
  lines(plot) {
    if (this.single) {
      const [unit] = this.units;
      return plot.columns.map((column) => {
        const key = plot.key === 'waiting' ? `${column}_waiting` : `${plot.key}_${column}`;
        return { unit, label: column, values: (data) => data[key], dash: column === 'entitled' ? [6, 4] : undefined };
      });
    }
    const sum = (data) => data.t.map((_, i) => {
      const parts = [data.cpu_waiting[i], data.memory_waiting[i], data.disk_waiting[i]].filter((part) => part !== null);
      return parts.length ? parts.reduce((a, b) => a + b) : null;
    });
    const values = plot.key === 'waiting' ? sum : (data) => data[`${plot.key}_used`];
    return this.units.map((unit) => ({ unit, label: clean(unit), values }));
  }

  table(plot) {
    const lines = this.lines(plot).filter((line) => this.data.has(line.unit));
    const tables = lines.map((line) => {
      const data = this.data.get(line.unit);
      return [data.t, line.values(data)];
    });
    return tables.length ? uPlot.join(tables) : [[]];
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
      const heading = plot.name + (this.single || plot.key === 'waiting' ? '' : ', used');
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
          ...lines.map((line, i) => ({
            label: line.label,
            stroke: colour(`--line-${i + 1}`),
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
    let samples = 0;
    for (const { plot, uplot } of this.charts) {
      const table = this.table(plot);
      samples = Math.max(samples, table[0].length);
      uplot.setData(table);
    }
    const left = this.leftOut > 0 && !this.single ? `The first ${LINES} units are shown, ${this.leftOut} are not: filter the units above to choose others. ` : '';
    this.note.textContent = left + (samples === 0 && this.units.length ? 'There are no samples of this period.' : '');
  }

  resize() {
    for (const { uplot, figure } of this.charts) {
      if (figure.clientWidth > 0 && figure.clientWidth !== uplot.width) uplot.setSize({ width: figure.clientWidth, height: 170 });
    }
  }
}

// Distances of an axis of bytes: powers of two.
const POWERS = Array.from({ length: 50 }, (_, power) => 2 ** power);
