// The live page: follows /api/live, and shows verdicts, units and plots.

import { RESOURCES, VERDICTS, clean, cpus, duration, element, fill, perSecond, setText } from './figures.js';
import { Plots, UNITS_MAX } from './plots.js';
import { showTrades } from './trades.js';
import { Tree, parentIn } from './tree.js';

const $ = (id) => document.getElementById(id);

// The present state: units by path, in order.
const state = { units: new Map(), order: [], machine: null, wallMs: 0 };
// The last ten seconds of each unit's waits, by cause.
const waits = new Map();
const WINDOW_MS = 10_000;

const plots = new Plots($('plots'), $('plots-note'));
const tree = new Tree($('units'), select, togglePlotted);
let selected = null;
// The units that the reader chose to plot; null: those that follow from the selection.
let chosen = null;
// The most units that are plotted unless the reader chooses others.
const PLOTTED = 8;
// The most problems that are listed.
const PROBLEMS = 8;

function select(path) {
  selected = path;
  showPlots();
  showDetail();
}

function togglePlotted(path) {
  const units = new Set(plotted());
  if (!units.delete(path) && units.size < UNITS_MAX) units.add(path);
  chosen = units;
  showPlots();
}

// The paths of the units that are plotted, in order: by default the selected unit and its sub-units, or those at the top.
function plotted() {
  if (chosen) return state.order.filter((path) => chosen.has(path));
  const below = state.order.filter((path) => parentIn(state.units, path) === selected);
  return (selected === null ? below : [selected, ...below]).slice(0, PLOTTED);
}

const waitKey = (wait) => JSON.stringify([wait.resource, wait.cause, wait.unit ?? '']);

function rememberWaits(unit) {
  const samples = waits.get(unit.unit) ?? [];
  // The machine's clock was set back.
  if (samples.length && samples[samples.length - 1].at > state.wallMs) samples.length = 0;
  samples.push({ at: state.wallMs, ns: new Map(unit.waits.map((wait) => [waitKey(wait), wait.ns])) });
  // One sample before the window is kept, as its base.
  while (samples.length > 1 && samples[1].at < state.wallMs - WINDOW_MS) samples.shift();
  waits.set(unit.unit, samples);
}

// The causes of a unit's waits in the last ten seconds, in seconds per second, those of others first.
function recentWaits(unit) {
  const samples = waits.get(unit.unit) ?? [];
  while (samples.length > 1 && samples[1].at < state.wallMs - WINDOW_MS) samples.shift();
  const [base] = samples;
  if (!base || state.wallMs <= base.at) return [];
  const seconds = (state.wallMs - base.at) / 1e3;
  return unit.waits
    .map((wait) => ({ ...wait, rate: (wait.ns - (base.ns.get(waitKey(wait)) ?? 0)) / 1e9 / seconds }))
    .filter((wait) => wait.rate >= 0.005)
    .sort((a, b) => (a.cause === 'own') - (b.cause === 'own') || b.rate - a.rate);
}

function merge(message) {
  const before = new Map(state.units);
  const beforeMs = state.wallMs;
  if (message.whole) {
    state.units.clear();
    waits.clear();
  }
  state.wallMs = message.wall_ms;
  if (message.machine) state.machine = message.machine;
  for (const path of message.gone ?? []) {
    state.units.delete(path);
    waits.delete(path);
  }
  for (const unit of message.units ?? []) {
    unit.waits ??= [];
    unit.verdicts ??= [];
    state.units.set(unit.unit, unit);
    rememberWaits(unit);
  }
  if (message.order) state.order = message.order;
  return { before: message.whole ? null : before, seconds: (state.wallMs - beforeMs) / 1e3 };
}

function show() {
  const units = state.order.map((path) => state.units.get(path)).filter(Boolean);
  showVerdicts(units);
  showMachine();
  tree.update(units, recentWaits);
  $('units-box').classList.toggle('long', units.length > 40);
  if (selected !== null && !state.units.has(selected)) tree.select(selected);
  showPlots();
  showDetail();
  showTrades(state, $);
}

function showPlots() {
  const units = plotted();
  const shown = new Set(units);
  const hasOthers = state.order.some((path) => !shown.has(path) && parentIn(state.units, path) === null);
  plots.show(units, units.includes(selected) ? selected : null, hasOthers);
  tree.showPlotted(plots.colours());
  $('unchoose').hidden = chosen === null;
  setText($('unchoose'), selected === null ? 'Plot the units at the top' : 'Plot the selected unit');
}

function showVerdicts(units) {
  const all = units.flatMap((unit) => unit.verdicts.map((verdict) => ({ ...verdict, unit: unit.unit })));
  const broken = all.filter((verdict) => verdict.verdict === 'broken');
  const unknown = all.filter((verdict) => verdict.verdict === 'cannot-tell').length;
  const counted = (n, word) => `${n} ${word}${n === 1 ? '' : 's'}`;
  const rest = unknown ? `; ${unknown} cannot be told` : '';
  const [text, className] = broken.length
    ? [`The contract is broken: ${broken.length} of ${counted(all.length, 'verdict')}${rest}`, 'broken']
    : unknown === all.length ? ['Whether the contract is kept cannot be told', 'cannot-tell']
      : [`The contract is kept${rest}`, 'kept'];
  setText($('verdict'), text);
  $('verdict').className = className;
  const lines = broken.map((verdict) => [
    `${clean(verdict.unit)}, ${verdict.resource}: ${clean(verdict.said)} ${clean(verdict.remedy)}`.trim(), '']);
  for (const problem of state.machine?.problems ?? []) {
    // Broken verdicts are listed above.
    if (!problem.startsWith('verdict: ')) lines.push([clean(problem), 'note']);
  }
  // Else a machine of many units would have nothing but these on its first screens.
  if (lines.length > PROBLEMS) lines.splice(PROBLEMS, lines.length, [`${lines.length - PROBLEMS} further problems; the tree marks broken verdicts`, 'note']);
  const list = $('problems');
  const key = JSON.stringify(lines);
  if (list.dataset.key !== key) {
    list.dataset.key = key;
    list.replaceChildren(...lines.map(([line, kind]) => element('li', kind, line)));
  }
}

function showMachine() {
  const { machine } = state;
  if (!machine) return;
  const facts = [
    ['Contract', machine.contract],
    ['Scheme', machine.scheme],
    ['Backend', machine.instead ? `${machine.backend}, in place of ${machine.instead.of}: ${machine.instead.why}` : machine.backend],
    ['Machine', machine.cpus === 1 ? '1 CPU' : `${machine.cpus} CPUs`],
    ['Call-back', `${duration(machine.call_back_promised_ns)} promised`],
    ['Daemon', `${duration(machine.daemon.cpu_ns)} CPU time in ${machine.daemon.turns} turns, longest gap ${duration(machine.daemon.longest_gap_ns)}`],
    ...machine.holdings.filter((holding) => holding.held !== 'yes').map((holding) => [
      RESOURCES.find((resource) => resource.key === holding.resource)?.name ?? holding.resource, holding.how]),
  ];
  const list = $('machine');
  const key = JSON.stringify(facts);
  if (list.dataset.key === key) return;
  list.dataset.key = key;
  list.replaceChildren(...facts.flatMap(([name, text]) => [element('dt', '', name), element('dd', '', clean(text))]));
}

// CPUs that a unit lends to others, or borrows from them, by the other's path. Loans among its own sub-units are left out.
function loansOf(path, from, to) {
  const isIn = (unit) => unit === path || unit.startsWith(`${path}/`);
  const sums = new Map();
  for (const loan of state.machine?.loans ?? []) {
    if (!isIn(loan[from]) || isIn(loan[to])) continue;
    sums.set(loan[to], (sums.get(loan[to]) ?? 0) + loan.micro_cpus);
  }
  return [...sums].sort((a, b) => b[1] - a[1]);
}

// The selected unit: its verdicts in sentences, what it has, to whom it lends, and why it waited.
function showDetail() {
  const unit = selected === null ? null : state.units.get(selected);
  $('detail').hidden = !unit;
  if (!unit) return;
  setText($('detail-head'), clean(selected));
  const tables = [];
  const add = (caption, heads, rows) => rows.length && tables.push({ caption, heads, rows });
  const numbers = (...texts) => texts.map((text) => [text, 'number']);
  add('Verdicts', [], unit.verdicts.map((verdict) => [
    verdict.resource, [VERDICTS[verdict.verdict], verdict.verdict], `${clean(verdict.said)} ${clean(verdict.remedy)}`.trim()]));
  add('Now', ['', ...numbers('entitled', 'using', 'lent', 'borrowed', 'of')], RESOURCES.filter(({ key }) => unit[key]).map(
    ({ key, name, write }) => {
      const { entitled, using, lent, borrowed, whole } = unit[key];
      return [name, ...numbers(...[entitled, using, lent, borrowed, whole].map(write))];
    }));
  const loans = (words, from, to) => loansOf(selected, from, to)
    .map(([other, micro]) => [words, clean(other), ...numbers(`${cpus(micro / 1e6)} CPUs`)]);
  add('Loans of CPUs', [], [...loans('lends to', 'lender', 'borrower'), ...loans('borrows from', 'borrower', 'lender')]);
  const rates = new Map(recentWaits(unit).map((wait) => [waitKey(wait), wait.rate]));
  const total = unit.waits.reduce((sum, wait) => sum + wait.ns, 0);
  const dash = (ns) => (ns > 0 ? duration(ns) : '-');
  add('Waits for', ['', 'cause', ...numbers('now', 'in all', 'share', 'beyond its part', 'inferred')], [...unit.waits].sort((a, b) => b.ns - a.ns)
    .map((wait) => {
      const now = rates.has(waitKey(wait)) ? perSecond(rates.get(waitKey(wait))) : '-';
      const part = total > 0 ? `${Math.round(100 * wait.ns / total)} %` : '';
      return [wait.resource, clean(wait.said), ...numbers(now, duration(wait.ns), part, dash(wait.beyond_ns), dash(wait.inferred_ns))];
    }));
  const time = (ns) => (ns === undefined ? '-' : duration(ns));
  add('Call-backs', ['', ...numbers('number', '99 % within', 'longest', 'promised')], Object.entries(unit.call_backs ?? {}).map(
    ([resource, { count, p99_ns: most, max_ns: longest, promised_ns: promised }]) => [
      resource, ...numbers(String(count), ...[most, longest, promised].map(time))]));
  fill($('detail-tables'), tables);
}

function showLink(text, isLost) {
  setText($('link'), text);
  $('link').classList.toggle('lost', isLost);
}

$('filter').addEventListener('input', (event) => {
  tree.filter = event.target.value.trim();
  tree.show();
});
$('fold').addEventListener('click', () => tree.foldAll(true));
$('unfold').addEventListener('click', () => tree.foldAll(false));
$('close').addEventListener('click', () => tree.select(selected));
$('unchoose').addEventListener('click', () => {
  chosen = null;
  showPlots();
});
$('period').addEventListener('change', (event) => plots.showPeriod(Number(event.target.value)));

const events = new EventSource('/api/live');
events.addEventListener('message', (event) => {
  const message = JSON.parse(event.data);
  if ('whole' in message) {
    const { before, seconds } = merge(message);
    if (!message.lost) plots.add(state.wallMs / 1e3, state.units, before, seconds);
    show();
  }
  if (message.lost) showLink(`the daemon is not reached: ${clean(message.lost)}`, true);
  else if ('whole' in message) showLink('live', false);
});
events.addEventListener('error', () => showLink('the server does not answer; trying again', true));
