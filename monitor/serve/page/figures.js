// Numbers in words, with the units that the program's other texts use.

const scaled = (value, base, units) => {
  let power = 0;
  while (power + 1 < units.length && Math.abs(value) >= base * (1 - 0.05 / base)) {
    value /= base;
    power += 1;
  }
  return `${Number(value.toFixed(1))} ${units[power]}`.trim();
};

export const cpus = (value) => String(Number(value.toFixed(2)));
export const bytes = (value) => scaled(value, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB']);
export const rate = (value) => scaled(value, 1000, ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s', 'PB/s']);
export const perSecond = (value) => `${Number(value.toFixed(2))} s/s`;

export const duration = (ns) => {
  const s = ns / 1e9;
  if (ns === 0) return '0 s';
  if (s < 0.00005) return '<0.1 ms';
  if (s < 1) return `${(s * 1e3).toFixed(1)} ms`;
  if (s < 1000) return `${s.toFixed(1)} s`;
  if (s < 36000) return `${(s / 60).toFixed(1)} min`;
  if (s < 360000) return `${(s / 3600).toFixed(1)} h`;
  return `${(s / 86400).toFixed(1)} d`;
};

// The resources, each with the field of a unit, its name, and how its amounts are written.
export const RESOURCES = [
  { key: 'cpu', name: 'CPUs', write: (micro) => cpus(micro / 1e6) },
  { key: 'memory', name: 'Memory', write: bytes },
  { key: 'disk', name: 'Disk', write: rate },
  { key: 'bus', name: 'Bus', write: rate },
];

export const VERDICTS = { kept: 'kept', broken: 'broken', 'cannot-tell': 'cannot tell' };

// Characters that move the cursor or reorder text, which a name may contain.
const FOUL = /[\u0000-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g;
export const clean = (text) => text.replace(FOUL, '\ufffd');

// An element with a class and a text. Text is never parsed as HTML.
export const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

export const setText = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

export const setAttribute = (node, name, value) => {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
};

// Shows tables in `holder`: each has a caption, perhaps headings, and rows of cells, which are a text or a text and a
// class. Existing cells are updated in place, so that a selection of text survives.
export function fill(holder, tables) {
  while (holder.children.length > tables.length) holder.lastChild.remove();
  tables.forEach(({ caption, heads = [], rows }, i) => {
    const table = holder.children[i] ?? holder.appendChild(element('table'));
    setText(table.caption ?? table.createCaption(), caption ?? '');
    table.caption.hidden = !caption;
    if (heads.length) fillRow(table.tHead?.rows[0] ?? table.createTHead().insertRow(), heads, 'th');
    else table.deleteTHead();
    table.classList.toggle('wide', heads.length > 4);
    const body = table.tBodies[0] ?? table.createTBody();
    while (body.rows.length > rows.length) body.lastChild.remove();
    rows.forEach((cells, at) => fillRow(body.rows[at] ?? body.insertRow(), cells, 'td', heads));
  });
}

// `heads` are the headings of the cells, for screens that are too narrow for columns.
function fillRow(row, cells, tag, heads = []) {
  while (row.cells.length > cells.length) row.lastChild.remove();
  cells.forEach((cell, at) => {
    const [text, className = ''] = Array.isArray(cell) ? cell : [cell];
    const node = row.cells[at] ?? row.appendChild(element(tag));
    setText(node, text);
    if (node.className !== className) node.className = className;
    const [head] = [heads[at] ?? ''].flat();
    if (tag === 'td' && node.dataset.head !== head) node.dataset.head = head;
  });
}
