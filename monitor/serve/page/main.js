// The live page: follows /api/live, and shows verdicts, units and plots.

import { RESOURCES, VERDICTS, bytes, clean, cpus, duration, element, setText } from './figures.js';
import { Plots } from './plots.js';
import { Tree, parentOf } from './tree.js';

const $ = (id) => document.getElementById(id);

// The present state: units by path, in order.
const state = { units: new Map(), order: [], machine: null, wallMs: 0 };
// The last ten seconds of each unit's waits, by cause.
const waits = new Map();
const WINDOW_MS = 10_000;

const plots = new Plots($('plots'), $('plots-note'));
const tree = new Tree($('units'), select);
let selected = null;

function select(path) {
  selected = path;
  $('all').hidden = path === null;
  setText($('plots-head'), path === null ? 'All units' : clean(path));
  showPlots();
  showDetail();
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
  showTrades();
  tree.update(units, recentWaits);
  if (selected !== null && !state.units.has(selected)) tree.select(selected);
  showPlots();
  showDetail();
}

// Without a selected unit, the plots show the units at the top, or those that match the filter.
function showPlots() {
  const top = tree.filter ? tree.matching() : state.order.filter((path) => parentOf(path) === null);
  plots.show(selected === null ? top : [selected], selected !== null);
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

function rows(caption, lines, heads) {
  const table = element('table');
  table.append(element('caption', '', caption));
  if (heads) {
    const row = table.createTHead().insertRow();
    for (const head of heads) {
      const cell = element('th', '', head);
      cell.scope = 'col';
      row.append(cell);
    }
  }
  const body = table.createTBody();
  for (const cells of lines) {
    const row = body.insertRow();
    for (const [text, className] of cells) row.append(element('td', className, text));
  }
  return table;
}

// What a job does as a gang; empty if jobs are no gangs.
function gangText(gang) {
  if (!gang) return '';
  if (gang.state === 'waits') return `waits, ${gang.waits} quanta so far`;
  return gang.state === 'runs' ? `runs on ${gang.cpus} CPUs` : gang.state;
}

// Replaces the tables of a place, unless they are the same. Each is a caption, lines, and heads.
function showTables(place, tables) {
  const key = JSON.stringify(tables);
  if (place.dataset.key === key) return;
  place.dataset.key = key;
  place.replaceChildren(...tables.filter(([, lines]) => lines.length).map((table) => rows(...table)));
}

// Loans of CPUs under way, exchanges of tickets, and jobs with their pools and gangs.
function showTrades() {
  const { machine } = state;
  if (!machine) return;
  const loans = (machine.loans ?? []).map((loan) => [
    [clean(loan.borrower), ''], [cpus(loan.micro_cpus / 1e6), 'number'], [clean(loan.lender), '']]);
  const exchanges = (machine.exchanges ?? []).flatMap((exchange) => exchange.lent.map((lent) => [
    [`${exchange.number}`, 'number'], [clean(lent.from), ''], [clean(lent.to), ''],
    [lent.of ? `${lent.what} of ${clean(lent.of)}` : lent.what, '']]));
  const jobs = (machine.jobs ?? []).map((job) => [
    [`${job.job} ${clean(job.name)}`, ''], [clean(job.unit), ''], [`${job.threads}`, 'number'],
    [job.pools.map(([pool, threads]) => `${pool}: ${threads}`).join(', '), ''],
    [(job.memory ?? []).map(([node, held]) => `${node}: ${bytes(held)}`).join(', '), ''], [gangText(job.gang), '']]);
  $('trades').hidden = !(loans.length || exchanges.length || jobs.length);
  showTables($('trades-tables'), [
    ['CPUs on loan', loans, ['borrower', 'CPUs', 'lender']],
    ['Exchanges of tickets in force', exchanges, ['exchange', 'lends', 'to', 'tickets']],
    ['Jobs', jobs, ['job', 'unit', 'threads', 'threads in pools', 'memory in nodes', 'gang']],
  ]);
}

// The selected unit: its verdicts in sentences, and why it waited.
function showDetail() {
  const unit = selected === null ? null : state.units.get(selected);
  const detail = $('detail');
  detail.hidden = !unit;
  if (!unit) return;
  const verdicts = unit.verdicts.map((verdict) => [
    [verdict.resource, ''], [VERDICTS[verdict.verdict], verdict.verdict],
    [`${clean(verdict.said)} ${clean(verdict.remedy)}`.trim(), '']]);
  const total = unit.waits.reduce((sum, wait) => sum + wait.ns, 0);
  const causes = [...unit.waits].sort((a, b) => b.ns - a.ns).map((wait) => [
    [wait.resource, ''], [clean(wait.said), ''], [duration(wait.ns), 'number'],
    [total > 0 ? `${Math.round(100 * wait.ns / total)} %` : '', 'number']]);
  const backs = Object.entries(unit.call_backs ?? {}).map(([resource, view]) => [
    [resource, ''], [`${view.count}`, 'number'],
    [view.p99_ns === undefined ? '' : `99 % within ${duration(view.p99_ns)}`, ''], [`longest ${duration(view.max_ns)}`, ''],
    [view.promised_ns === undefined ? '' : `promised ${duration(view.promised_ns)}`, '']]);
  const withOther = (loan) => (loan.lender === unit.unit ? ['lends', loan.borrower] : ['borrows', loan.lender]);
  const loans = (state.machine?.loans ?? [])
    .filter((loan) => loan.lender === unit.unit || loan.borrower === unit.unit)
    .map((loan) => {
      const [does, other] = withOther(loan);
      return [[does, ''], [cpus(loan.micro_cpus / 1e6), 'number'], [`${does === 'lends' ? 'to' : 'from'} ${clean(other)}`, '']];
    });
  showTables(detail, [
    ['Verdicts', verdicts],
    ['Waited for, since the accounts were opened', causes],
    ['CPUs on loan', loans],
    ['Call-backs', backs],
  ]);
}

function showLink(text, isLost) {
  setText($('link'), text);
  $('link').classList.toggle('lost', isLost);
}

$('filter').addEventListener('input', (event) => {
  tree.filter = event.target.value.trim();
  tree.show();
  showPlots();
});
$('fold').addEventListener('click', () => tree.foldAll(true));
$('unfold').addEventListener('click', () => tree.foldAll(false));
$('all').addEventListener('click', () => selected !== null && tree.select(selected));
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
