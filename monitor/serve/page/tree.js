// The units as a treegrid: one row for each unit, with a bar for each resource.

import { RESOURCES, VERDICTS, clean, duration, element, perSecond, setAttribute, setText } from './figures.js';

const SVG = 'http://www.w3.org/2000/svg';
const HEADS = { cpu: 'CPUs', memory: 'Memory', disk: 'Disk', bus: 'Bus' };

const shape = (tag, className, parent) => {
  const made = document.createElementNS(SVG, tag);
  made.setAttribute('class', className);
  parent.append(made);
  return made;
};

const place = (rect, from, to) => {
  setAttribute(rect, 'x', `${from}%`);
  setAttribute(rect, 'width', `${Math.max(0, to - from)}%`);
};

// A cell with a bar: used, borrowed, lent, and the entitlement as a mark.
class Bar {
  constructor(cell, resource) {
    this.cell = cell;
    this.resource = resource;
    this.svg = shape('svg', 'bar', element('div'));
    this.svg.setAttribute('aria-hidden', 'true');
    for (const part of ['track', 'own', 'borrowed', 'lent']) {
      this[part] = shape('rect', part, this.svg);
      this[part].setAttribute('height', '100%');
    }
    place(this.track, 0, 100);
    this.lent.setAttribute('y', '1');
    this.lent.setAttribute('height', '10');
    this.mark = shape('line', 'mark', this.svg);
    this.mark.setAttribute('y2', '100%');
    this.amount = element('div');
    this.loans = element('div', 'small');
    this.verdict = element('div');
    const content = element('div');
    content.append(this.svg, this.amount, this.loans, this.verdict);
    cell.append(content);
  }

  update(gauge, scale, verdict) {
    const { write } = this.resource;
    this.cell.classList.toggle('empty', !gauge);
    this.svg.style.display = gauge ? '' : 'none';
    if (!gauge) {
      setText(this.amount, '-');
    } else {
      const at = (amount) => scale > 0 ? Math.min(100, 100 * amount / scale) : 0;
      const borrowed = Math.min(gauge.borrowed, gauge.using);
      place(this.own, 0, at(gauge.using - borrowed));
      place(this.borrowed, at(gauge.using - borrowed), at(gauge.using));
      place(this.lent, at(Math.max(0, gauge.entitled - gauge.lent)), at(gauge.entitled));
      this.lent.style.display = gauge.lent > 0 ? '' : 'none';
      const mark = `${Math.min(99.5, Math.max(0.5, at(gauge.entitled)))}%`;
      setAttribute(this.mark, 'x1', mark);
      setAttribute(this.mark, 'x2', mark);
      setText(this.amount, `${write(gauge.using)} of ${write(gauge.entitled)}`);
    }
    const loans = [['lent', gauge?.lent], ['borrowed', gauge?.borrowed]].filter(([, amount]) => amount > 0);
    setText(this.loans, loans.map(([word, amount]) => `${word} ${write(amount)}`).join(', '));
    setText(this.verdict, verdict ? VERDICTS[verdict.verdict] : '');
    this.verdict.className = verdict?.verdict ?? '';
    this.verdict.title = clean(verdict?.said ?? '');
  }
}

class Row {
  // The row of a unit below the one with the path `parent`, at `depth`.
  constructor(path, parent, depth) {
    this.path = path;
    this.parent = parent;
    this.depth = depth;
    this.row = element('tr');
    this.row.setAttribute('role', 'row');
    this.row.setAttribute('aria-level', this.depth);
    this.row.tabIndex = -1;
    this.row.dataset.path = path;
    const name = element('div', 'name');
    this.twist = element('span', 'twist');
    this.twist.setAttribute('aria-hidden', 'true');
    const text = element('div');
    this.processes = element('div', 'small');
    const shown = parent === null ? path : path.slice(parent.length + 1);
    text.append(element('span', 'path', clean(shown)), this.processes);
    this.box = element('input');
    this.box.type = 'checkbox';
    this.box.tabIndex = -1;
    this.box.setAttribute('aria-label', `Plot ${clean(path)}`);
    name.append(this.twist, this.box, text);
    const first = this.cell('');
    first.style.paddingLeft = `${(this.depth - 1) * 1.1 + 0.25}rem`;
    name.style.marginLeft = '0';
    first.append(name);
    this.bars = RESOURCES.map((resource) => {
      const cell = this.cell(HEADS[resource.key]);
      if (resource.key === 'bus') cell.classList.add('bus');
      return new Bar(cell, resource);
    });
    this.waits = this.cell('Waits for');
    this.waitsText = element('div');
    this.waits.append(this.waitsText);
    this.callBack = this.cell('Call-back');
    this.callBackText = element('div');
    this.callBack.append(this.callBackText);
  }

  cell(head) {
    const cell = element('td');
    cell.setAttribute('role', 'gridcell');
    cell.dataset.head = head;
    this.row.append(cell);
    return cell;
  }

  update(unit, scales, scale, waits) {
    setText(this.waitsText, waits);
    this.waits.classList.toggle('empty', waits === '-');
    if (this.unit === unit && this.scale === scale) return;
    this.unit = unit;
    this.scale = scale;
    const count = unit.processes === 1 ? '1 process' : `${unit.processes} processes`;
    setText(this.processes, unit.gangs ? `${count}; ${clean(unit.gangs)}` : count);
    for (const bar of this.bars) {
      const { key } = bar.resource;
      const verdict = unit.verdicts.find((verdict) => verdict.resource === key);
      bar.update(unit[key], scales[key], verdict);
    }
    const { cpu } = unit.call_backs ?? {};
    const p99 = cpu?.p99_ns ?? cpu?.max_ns;
    this.callBack.classList.toggle('empty', !cpu?.count);
    const isLate = cpu?.count > 0 && cpu.promised_ns !== undefined && p99 > cpu.promised_ns;
    setText(this.callBackText, cpu?.count
      ? `${cpu.p99_ns === undefined ? 'at most ' : ''}${duration(p99)}`
        + (cpu.promised_ns === undefined ? '' : ` of ${duration(cpu.promised_ns)}`)
      : '-');
    this.callBackText.className = isLate ? 'broken' : '';
  }
}

const inWords = (waits) => waits.length
  ? waits.slice(0, 2).map((wait) => `${clean(wait.said)}: ${wait.resource} ${perSecond(wait.rate)}`).join('; ')
  : '-';

export class Tree {
  // `onSelect` gets the path of the selected unit or null, and `onPlot` that of a unit to be plotted or not.
  constructor(table, onSelect, onPlot) {
    this.table = table;
    this.body = table.tBodies[0];
    this.onSelect = onSelect;
    this.onPlot = onPlot;
    this.rows = new Map();
    this.folded = new Set();
    this.filter = '';
    this.selected = null;
    this.body.addEventListener('keydown', (event) => this.key(event));
    this.body.addEventListener('click', (event) => {
      const row = event.target.closest('tr');
      if (!row) return;
      this.focus(row);
      if (event.target.type === 'checkbox') this.onPlot(row.dataset.path);
      else if (event.target.closest('.twist') && row.hasAttribute('aria-expanded')) this.toggle(row.dataset.path);
      else this.select(row.dataset.path);
    });
  }

  // Shows `units`, in order; `waitsOf` has the causes of each unit's recent waits.
  update(units, waitsOf) {
    const scales = {};
    for (const { key } of RESOURCES) {
      const amounts = units.map((unit) => unit[key]).filter(Boolean).flatMap((gauge) => [gauge.entitled, gauge.using]);
      scales[key] = Math.max(0, ...amounts);
    }
    this.table.classList.toggle('has-bus', units.some((unit) => unit.bus));
    const scale = JSON.stringify(scales);
    const wanted = new Set(units.map((unit) => unit.unit));
    const parents = new Set();
    let before = null;
    for (const unit of units) {
      const parent = parentIn(wanted, unit.unit);
      parents.add(parent);
      let row = this.rows.get(unit.unit);
      const depth = (this.rows.get(parent)?.depth ?? 0) + 1;
      if (row?.parent !== parent || row.depth !== depth) {
        row?.row.remove();
        row = new Row(unit.unit, parent, depth);
        this.rows.set(unit.unit, row);
      }
      row.update(unit, scales, scale, inWords(waitsOf(unit)));
      const next = before ? before.nextElementSibling : this.body.firstElementChild;
      if (next !== row.row) this.body.insertBefore(row.row, next);
      before = row.row;
    }
    for (const [path, row] of this.rows) {
      row.isParent = parents.has(path);
      if (!wanted.has(path)) {
        const hadFocus = row.row === document.activeElement;
        row.row.remove();
        this.rows.delete(path);
        if (hadFocus) this.visible()[0]?.focus();
      }
    }
    this.show();
  }

  // Hides rows below folded units, and those that do not match the filter.
  show() {
    const filter = this.filter.toLowerCase();
    const matching = new Set();
    if (filter) {
      for (const path of this.rows.keys()) {
        if (path.toLowerCase().includes(filter)) {
          for (let at = path; at !== null; at = this.rows.get(at).parent) matching.add(at);
        }
      }
    }
    for (const [path, row] of this.rows) {
      let isHidden = filter ? !matching.has(path) : false;
      for (let at = row.parent; at !== null && !filter; at = this.rows.get(at).parent) isHidden ||= this.folded.has(at);
      if (row.row.hidden !== isHidden) row.row.hidden = isHidden;
      const isFolded = this.folded.has(path) && !filter;
      if (row.isParent) setAttribute(row.row, 'aria-expanded', String(!isFolded));
      else row.row.removeAttribute('aria-expanded');
      setText(row.twist, row.isParent ? (isFolded ? '\u25b8' : '\u25be') : '');
      setAttribute(row.row, 'aria-selected', String(path === this.selected));
    }
    const rows = this.visible();
    if (!rows.some((row) => row.tabIndex === 0) && rows[0]) rows[0].tabIndex = 0;
  }

  // Marks the units that are plotted, each with the colour of its line.
  showPlotted(colours) {
    for (const [path, { box }] of this.rows) {
      const colour = colours.get(path);
      box.checked = colour !== undefined;
      if (box.style.accentColor !== (colour ?? '')) box.style.accentColor = colour ?? '';
    }
  }

  visible() {
    return [...this.body.rows].filter((row) => !row.hidden);
  }

  focus(row) {
    for (const other of this.body.querySelectorAll('tr[tabindex="0"]')) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  toggle(path) {
    if (!this.folded.delete(path)) this.folded.add(path);
    this.show();
  }

  foldAll(isFolded) {
    this.folded = new Set(isFolded ? [...this.rows.keys()].filter((path) => this.rows.get(path).isParent) : []);
    for (const row of this.body.rows) row.tabIndex = -1;
    this.show();
  }

  select(path) {
    this.selected = path === this.selected ? null : path;
    this.show();
    this.onSelect(this.selected);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const row = event.target.closest('tr');
    const rows = this.visible();
    const index = rows.indexOf(row);
    const path = row?.dataset.path;
    const expanded = row?.getAttribute('aria-expanded');
    const parent = this.rows.get(this.rows.get(path)?.parent)?.row;
    const act = {
      ArrowDown: () => rows[index + 1] && this.focus(rows[index + 1]),
      ArrowUp: () => rows[index - 1] && this.focus(rows[index - 1]),
      Home: () => this.focus(rows[0]),
      End: () => this.focus(rows[rows.length - 1]),
      ArrowRight: () => (expanded === 'false' ? this.toggle(path) : expanded && rows[index + 1] && this.focus(rows[index + 1])),
      ArrowLeft: () => (expanded === 'true' ? this.toggle(path) : parent && this.focus(parent)),
      Enter: () => this.select(path),
      ' ': () => this.select(path),
      p: () => this.onPlot(path),
      P: () => this.onPlot(path),
    }[event.key];
    if (!row || !act) return;
    event.preventDefault();
    act();
  }
}

// The path of the nearest enclosing unit among `units`, which has paths; null for a unit at the top.
export function parentIn(units, path) {
  for (let at = path.lastIndexOf('/'); at >= 0; at = path.lastIndexOf('/', at - 1)) {
    const parent = path.slice(0, at);
    if (units.has(parent)) return parent;
    if (at === 0) break;
  }
  return null;
}
