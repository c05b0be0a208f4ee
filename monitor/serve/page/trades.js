// What is not of one unit alone: loans by pairs, exchanges of tickets, and jobs with their pools and gangs.

import { bytes, clean, cpus, duration, fill, rate } from './figures.js';

// The daemon gives this many loans at most.
const LOANS_MAX = 64;
// The most jobs that are shown.
const JOBS = 200;

const number = (text) => [String(text), 'number'];
const listed = (items) => items.join(', ') || '-';

function loans(machine) {
  const rows = (machine.loans ?? []).map((loan) => [clean(loan.lender), clean(loan.borrower), number(cpus(loan.micro_cpus / 1e6))]);
  const caption = rows.length >= LOANS_MAX ? `The ${rows.length} largest` : '';
  return rows.length ? [{ caption, heads: ['lends', 'to', ['CPUs', 'number']], rows }] : [];
}

function exchanges(machine, wallMs) {
  const when = (ms) => {
    if (ms === undefined) return '-';
    return ms <= wallMs ? `${duration((wallMs - ms) * 1e6)} ago` : `in ${duration((ms - wallMs) * 1e6)}`;
  };
  const rows = (machine.exchanges ?? []).flatMap(({ number: id, began_ms: began, until_ms: until, lent }) => lent.map((leg, i) => [
    i ? '' : String(id), clean(leg.from), clean(leg.to), clean(leg.what), i ? '' : when(began), i ? '' : when(until)]));
  return rows.length ? [{ heads: ['exchange', 'lends', 'to', 'tickets', 'began', 'ends'], rows }] : [];
}

function gangOf({ gang }) {
  if (!gang) return '-';
  return { runs: `runs on ${gang.cpus}`, waits: `waits ${gang.waits}`, sleeps: 'sleeps' }[gang.state];
}

function useOf({ gang }) {
  if (gang?.bytes_per_s !== undefined) return rate(gang.bytes_per_s);
  return gang?.cache_bytes === undefined ? '-' : bytes(gang.cache_bytes);
}

function jobs(machine, units) {
  const all = machine.jobs ?? [];
  const rows = all.slice(0, JOBS).map((job) => [
    `${job.job} ${clean(job.name)}`, clean(job.unit), number(job.threads), gangOf(job), useOf(job),
    listed(job.pools.map(([pool, threads]) => `${pool}: ${threads}`)),
    listed((job.memory ?? []).map(([node, held]) => `${node}: ${bytes(held)}`))]);
  const heads = ['job', 'unit', ['threads', 'number'], 'gang', 'use by a thread', 'threads in pools', 'memory in nodes'];
  const gangs = units.filter((unit) => unit.gangs).map((unit) => [clean(unit.unit), clean(unit.gangs)]);
  return [
    ...(rows.length ? [{ caption: all.length > JOBS ? `The first ${JOBS} of ${all.length}` : '', heads, rows }] : []),
    ...(gangs.length ? [{ heads: ['unit', 'gangs'], rows: gangs }] : []),
  ];
}

// Shows those sections that have something to show.
export function showTrades(state, $) {
  if (!state.machine) return;
  const units = state.order.map((path) => state.units.get(path)).filter(Boolean);
  const sections = { loans: loans(state.machine), exchanges: exchanges(state.machine, state.wallMs), jobs: jobs(state.machine, units) };
  for (const [id, tables] of Object.entries(sections)) {
    $(id).hidden = tables.length === 0;
    fill($(id).querySelector('.tables'), tables);
  }
}
